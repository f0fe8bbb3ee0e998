#include "distributed/exact_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace rootdk::distributed {
namespace {

TEST(ExactSum, LosesNothing) {
  ExactSum sum;
  for (const double x : {1e300, 1.0, 5e-324, -1e300}) sum.add(x);
  EXPECT_EQ(sum.value(), 1.0);
  sum.add(-1.0);
  EXPECT_EQ(sum.value(), 5e-324);
  sum.add(-1e-323);
  EXPECT_EQ(sum.value(), -5e-324);
}

TEST(ExactSum, HasNoOrder) {
  std::mt19937_64 random(1);
  std::vector<double> values;
  for (int i = 0; i < 1000; ++i) {
    values.push_back(std::ldexp(std::normal_distribution<double>()(random), static_cast<int>(random() % 120) - 60));
  }
  ExactSum forward, halves[2];
  for (const double x : values) forward.add(x);
  std::shuffle(values.begin(), values.end(), random);
  for (std::size_t i = 0; i < values.size(); ++i) halves[i % 2].add(values[i]);
  halves[1].add(halves[0]);
  EXPECT_EQ(forward.value(), halves[1].value());
}

TEST(ExactSum, InfinitiesAndNan) {
  ExactSum sum;
  sum.add(std::numeric_limits<double>::infinity());
  EXPECT_EQ(sum.value(), std::numeric_limits<double>::infinity());
  sum.add(-std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(sum.value()));
}

TEST(UnitSum, HasNoOrder) {
  std::mt19937_64 random(2);
  std::vector<double> values;
  for (int i = 0; i < 1000; ++i) {
    values.push_back(std::ldexp(std::uniform_real_distribution<double>()(random), -static_cast<int>(random() % 40)));
  }
  UnitSum forward, halves[2];
  ExactSum exact;
  for (const double x : values) {
    forward.add(x);
    exact.add(x);
  }
  std::shuffle(values.begin(), values.end(), random);
  for (std::size_t i = 0; i < values.size(); ++i) halves[i % 2].add(values[i]);
  halves[1].add(halves[0]);
  EXPECT_EQ(forward.value(), halves[1].value());
  EXPECT_NEAR(forward.value(), exact.value(), 1e-15 * exact.value());
}

TEST(UnitSum, NumbersOutside) {
  for (const double value : {-0.5, 2.0, std::numeric_limits<double>::quiet_NaN()}) {
    UnitSum sum;
    sum.add(value);
    EXPECT_TRUE(std::isnan(sum.value())) << value;
  }
}

}  // namespace
}  // namespace rootdk::distributed
