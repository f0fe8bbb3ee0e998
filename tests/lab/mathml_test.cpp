#include "lab/report/mathml.h"

#include <gtest/gtest.h>

#include "core/check.h"
#include "lab/claim.h"
#include "markup.h"

namespace rootdk::lab {
namespace {

std::string inside(std::string_view latex) {
  const std::string all = mathml(latex);
  const std::string_view head = "<math><mrow>", tail = "</mrow></math>";
  EXPECT_TRUE(all.starts_with(head) && all.ends_with(tail)) << all;
  return all.substr(head.size(), all.size() - head.size() - tail.size());
}

TEST(MathMl, TranslatesWhatFormulasUse) {
  EXPECT_EQ(inside("d_k"), "<msub><mi>d</mi><mi>k</mi></msub>");
  EXPECT_EQ(inside("x^2"), "<msup><mi>x</mi><mn>2</mn></msup>");
  EXPECT_EQ(inside(R"(x_i^2)"), "<msubsup><mi>x</mi><mi>i</mi><mn>2</mn></msubsup>");
  EXPECT_EQ(inside(R"(\sqrt{d})"), "<msqrt><mrow><mi>d</mi></mrow></msqrt>");
  EXPECT_EQ(inside(R"(\frac{1}{n})"), "<mfrac><mrow><mn>1</mn></mrow><mrow><mi>n</mi></mrow></mfrac>");
  EXPECT_EQ(inside(R"(\tfrac12)"), "<mfrac><mn>1</mn><mn>2</mn></mfrac>");
  EXPECT_EQ(inside("a - 0.5"), "<mi>a</mi><mo>−</mo><mn>0.5</mn>");
  EXPECT_EQ(inside(R"(\text{a < b})"), "<mtext>a &lt; b</mtext>");
}

TEST(MathMl, RefusesWhatItDoesNotKnow) {
  EXPECT_THROW(mathml(R"(\unknown)"), Error);
  EXPECT_THROW(mathml("{x"), Error);
  EXPECT_THROW(mathml("x}"), Error);
  EXPECT_THROW(mathml(R"(\text{x)"), Error);
}

TEST(MathMl, EveryClaimHasAFormula) {
  for (const Claim& claim : catalogue()) expect_well_formed(mathml(claim.formula));
}

}  // namespace
}  // namespace rootdk::lab
