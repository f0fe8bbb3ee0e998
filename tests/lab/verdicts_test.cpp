// The verdicts: what they are with the library's kernels, and that they turn when a kernel is broken. The experiments
// that train or measure time are left to `rootdk lab`.

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "lab/run.h"

namespace rootdk::lab {
namespace {

Finding found(int id, const Bench& bench) { return measure(claim_by_id(id), bench).finding; }

// A kernel that multiplies where it should divide.
Bench with_flipped_scale() {
  Bench bench{.quick = true};
  bench.attend = [](ConstTensorView q, ConstTensorView k, ConstTensorView v, TensorView out,
                    const AttentionParams& params, const AttentionStats& stats) {
    AttentionParams wrong = params;
    wrong.logits.scale = 1 / params.logits.scale.factor(q.size(3));
    attention(q, k, v, out, wrong, stats);
  };
  return bench;
}

// A kernel whose logits come out a quarter too large.
Bench with_large_logits() {
  Bench bench{.quick = true};
  bench.attend = [](ConstTensorView q, ConstTensorView k, ConstTensorView v, TensorView out,
                    const AttentionParams& params, const AttentionStats& stats) {
    AttentionParams wrong = params;
    wrong.logits.scale = 1.25 * params.logits.scale.factor(q.size(3));
    attention(q, k, v, out, wrong, stats);
  };
  return bench;
}

// A kernel that divides by a sum one percent too small.
Bench with_wrong_sums() {
  Bench bench{.quick = true};
  bench.attend = [](ConstTensorView q, ConstTensorView k, ConstTensorView v, TensorView out,
                    const AttentionParams& params, const AttentionStats& stats) {
    attention(q, k, v, out, params, stats);
    for (std::int64_t i = 0; i < out.elements(); ++i) out.as<float>()[i] *= 1.01f;
  };
  return bench;
}

TEST(Verdicts, AreWhatMeasuringShows) {
  // All but those that time something (16, 20, 21, 22, 24) and the longest training (9).
  const std::vector<int> hold = {1, 2, 3, 4, 5, 6, 8, 12, 13, 14, 15, 17, 18, 19, 23, 26, 27};
  std::map<int, Verdict> expected;
  for (int id : hold) expected[id] = Verdict::holds;
  for (int id : {7, 10, 11, 25}) expected[id] = Verdict::holds_with_a_correction;
  for (const auto& [id, verdict] : expected) {
    const Finding finding = found(id, Bench{.quick = true});
    EXPECT_EQ(name_of(finding.verdict), name_of(verdict)) << "claim " << id << ": " << finding.note;
    EXPECT_FALSE(finding.note.empty()) << "claim " << id;
    EXPECT_GT(finding.samples, 0) << "claim " << id;
    EXPECT_TRUE(std::isfinite(finding.measured.value)) << "claim " << id;
    EXPECT_LE(finding.measured.low, finding.measured.value) << "claim " << id;
    EXPECT_GE(finding.measured.high, finding.measured.value) << "claim " << id;
  }
}

TEST(Verdicts, TurnWhenTheScaleIsFlipped) {
  for (int id : {3, 4, 6, 10, 17, 25}) {
    EXPECT_EQ(name_of(found(id, with_flipped_scale()).verdict), "does not hold") << "claim " << id;
  }
}

TEST(Verdicts, TurnWhenLogitsAreTooLarge) {
  for (int id : {1, 2, 4, 6, 17}) {
    EXPECT_EQ(name_of(found(id, with_large_logits()).verdict), "does not hold") << "claim " << id;
  }
}

TEST(Verdicts, TurnWhenTheSumIsWrong) { EXPECT_EQ(name_of(found(14, with_wrong_sums()).verdict), "does not hold"); }

TEST(Verdicts, RepeatWithTheSeed) {
  const Finding one = found(6, Bench{.seed = 4, .quick = true}), again = found(6, Bench{.seed = 4, .quick = true});
  const Finding other = found(6, Bench{.seed = 5, .quick = true});
  EXPECT_EQ(one.measured.value, again.measured.value);
  EXPECT_NE(one.measured.value, other.measured.value);
}

TEST(Verdicts, AnExperimentThatThrowsDoesNotHold) {
  Bench bench{.quick = true};
  bench.attend = [](auto&&...) { throw std::runtime_error("no kernel"); };
  const Finding finding = found(6, bench);
  EXPECT_EQ(finding.verdict, Verdict::does_not_hold);
  EXPECT_NE(finding.note.find("no kernel"), std::string::npos);
}

TEST(Verdicts, EveryClaimIsThereOnce) {
  int id = 0;
  for (const Claim& claim : catalogue()) EXPECT_EQ(claim.id, ++id);
  EXPECT_EQ(id, 27);
  EXPECT_THROW(claim_by_id(28), std::exception);
}

}  // namespace
}  // namespace rootdk::lab
