#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "rootdk/positions.h"
#include "support/tensors.h"

namespace rootdk::test {
namespace {

std::vector<double> slopes(std::int64_t heads) {
  Tensor out(DType::f64, {heads});
  alibi_slopes(out);
  return doubles(out);
}

TEST(Alibi, PowersOfTwo) {
  EXPECT_THAT(slopes(8), testing::ElementsAre(0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625));
  EXPECT_THAT(slopes(1), testing::ElementsAre(0.00390625));
  const std::vector<double> sixteen = slopes(16);
  EXPECT_DOUBLE_EQ(sixteen[0], std::sqrt(0.5));
  EXPECT_DOUBLE_EQ(sixteen[15], 0.00390625);
}

TEST(Alibi, OtherNumbersTakeEverySecondOfTheNextPower) {
  using testing::DoubleEq;
  const std::vector<double> twelve = slopes(12), eight = slopes(8), sixteen = slopes(16);
  for (std::size_t h = 0; h < 8; ++h) EXPECT_DOUBLE_EQ(twelve[h], eight[h]);
  for (std::size_t h = 8; h < 12; ++h) EXPECT_DOUBLE_EQ(twelve[h], sixteen[2 * (h - 8)]);
  EXPECT_THAT(slopes(3), testing::ElementsAre(DoubleEq(0.0625), DoubleEq(0.00390625), DoubleEq(0.25)));
}

TEST(Alibi, NoHeads) { EXPECT_TRUE(slopes(0).empty()); }

}  // namespace
}  // namespace rootdk::test
