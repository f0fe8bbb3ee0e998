#include <gtest/gtest.h>

#include <cmath>

#include "rootdk/positions.h"
#include "support/tensors.h"

namespace rootdk::test {
namespace {

std::vector<double> encode(std::int64_t len, std::int64_t dim, const SinusoidalParams& params) {
  Tensor out(DType::f64, {len, dim});
  sinusoidal_positions(out, params);
  return doubles(out);
}

TEST(Sinusoidal, InterleavedHandValues) {
  // dim 4: frequencies 1 and 1/100.
  const std::vector<double> x = encode(3, 4, {});
  EXPECT_EQ(x[0], 0);
  EXPECT_EQ(x[1], 1);
  EXPECT_NEAR(x[8], std::sin(2.0), 1e-15);
  EXPECT_NEAR(x[9], std::cos(2.0), 1e-15);
  EXPECT_NEAR(x[10], std::sin(0.02), 1e-15);
  EXPECT_NEAR(x[11], std::cos(0.02), 1e-15);
}

TEST(Sinusoidal, ConcatenatedHoldsTheSameNumbers) {
  const std::vector<double> a = encode(5, 6, {.offset = 7});
  const std::vector<double> b = encode(5, 6, {.layout = SinusoidalLayout::concatenated, .offset = 7});
  for (std::size_t row = 0; row < 5; ++row) {
    for (std::size_t pair = 0; pair < 3; ++pair) {
      EXPECT_EQ(a[row * 6 + 2 * pair], b[row * 6 + pair]);
      EXPECT_EQ(a[row * 6 + 2 * pair + 1], b[row * 6 + 3 + pair]);
    }
  }
}

TEST(Sinusoidal, OffsetAndBase) {
  const std::vector<double> x = encode(1, 2, {.base = 50, .offset = 9});
  EXPECT_NEAR(x[0], std::sin(9.0), 1e-15);
  // An odd dim ends on a sine.
  const std::vector<double> odd = encode(2, 3, {.base = 8});
  EXPECT_NEAR(odd[5], std::sin(1 / std::pow(8.0, 2.0 / 3)), 1e-15);
}

}  // namespace
}  // namespace rootdk::test
