// The statistics that verdicts rest on, against values worked out elsewhere and against their own promises.

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/check.h"
#include "lab/normal_maximum.h"
#include "lab/probe.h"
#include "lab/sampling.h"
#include "lab/sentence.h"

namespace rootdk::lab {
namespace {

TEST(Statistics, MomentsOfAFewNumbers) {
  const std::vector<double> values = {2, 4, 4, 4, 5, 5, 7, 9};
  EXPECT_DOUBLE_EQ(mean(values), 5);
  EXPECT_DOUBLE_EQ(variance(values), 32.0 / 7);
  EXPECT_DOUBLE_EQ(median({3, 1, 2}), 2);
  EXPECT_DOUBLE_EQ(quantile({5, 1, 4, 2, 3}, 0.75), 4);
  EXPECT_THROW(quantile({}, 0.5), Error);
}

TEST(Statistics, WilsonIntervalOfAShare) {
  const Interval half = share_interval(5, 10);  // tabulated: 0.2366 to 0.7634
  EXPECT_DOUBLE_EQ(half.value, 0.5);
  EXPECT_NEAR(half.low, 0.2366, 1e-4);
  EXPECT_NEAR(half.high, 0.7634, 1e-4);
  const Interval none = share_interval(0, 20);  // never a share of exactly 0 with certainty
  EXPECT_EQ(none.low, 0);
  EXPECT_NEAR(none.high, 0.1611, 1e-4);
}

TEST(Statistics, ExponentOfAPowerLaw) {
  const std::vector<double> x = {1, 2, 4, 8}, y = {3, 12, 48, 192};
  const Interval exponent = power_law_exponent(x, y);
  EXPECT_NEAR(exponent.value, 2, 1e-12);
  EXPECT_NEAR(exponent.high - exponent.low, 0, 1e-9);
  EXPECT_THROW(power_law_exponent(std::vector<double>{1, 2}, std::vector<double>{1, 2}), Error);
}

// 95 % intervals hold the truth in about 95 of 100 experiments: with 400 of them, between 92 and 98 %.
TEST(Statistics, IntervalsCoverAsOftenAsTheySay) {
  Random random(11, 1);
  constexpr int kTrials = 400, kSamples = 200;
  int means = 0, variances = 0, medians = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> values;
    for (int i = 0; i < kSamples; ++i) values.push_back(3 + 2 * random.normal());
    means += mean_interval(values).contains(3);
    variances += variance_interval(values).contains(4);
    medians += median_interval(values).contains(3);
  }
  for (int covered : {means, variances, medians}) {
    EXPECT_GE(covered, kTrials * 90 / 100);
    EXPECT_LE(covered, kTrials * 99 / 100);
  }
}

// Scores of d_k = 16, whose excess kurtosis is 6 / 16, and normal numbers. Heavy tails cost a few percent of coverage.
TEST(Statistics, KurtosisIntervalsCoverAsOftenAsTheySay) {
  Random random(12, 1);
  constexpr int kTrials = 200, kSamples = 2000;
  int normal = 0, scores = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> values, sums(kSamples);
    for (int i = 0; i < kSamples; ++i) values.push_back(3 + 2 * random.normal());
    for (double& sum : sums) {
      for (int d = 0; d < 16; ++d) sum += random.normal() * random.normal();
    }
    normal += kurtosis_interval(values).contains(0);
    scores += kurtosis_interval(sums).contains(6.0 / 16);
  }
  for (int covered : {normal, scores}) {
    EXPECT_GE(covered, kTrials * 88 / 100);
    EXPECT_LE(covered, kTrials * 99 / 100);
  }
  EXPECT_THROW(kurtosis_interval(std::vector<double>(100, 1.0)), Error);
}

// Rows that share their keys are not independent: the interval of their mean counts sets.
TEST(Statistics, RowsThatShareKeysCountAsOne) {
  RowSample sample;
  sample.rows_per_set = 4;
  for (double value : {1.0, 2.0, 4.0}) sample.entropy.insert(sample.entropy.end(), 4, value);
  const std::vector<double> sets = {1, 2, 4};
  EXPECT_EQ(sample.mean_of(sample.entropy).value, mean(sets));
  EXPECT_EQ(sample.mean_of(sample.entropy).high, mean_interval(sets).high);
  sample.max_weight.assign(400, 0.1);
  EXPECT_EQ(sample.share_over_interval(0.9).value, 0);
  EXPECT_EQ(sample.share_over_interval(0.9).high, share_interval(0, 100).high);
}

TEST(Statistics, TensorsAreFilledWithTheSameNumbersByAllThreads) {
  for (const std::int64_t size : {1, 2, 16384, 100001}) {
    Random one(5, 3), other(5, 3);
    const Tensor tensor = one.normal_tensor({size}, 2.0), second = one.normal_tensor({3});
    for (float value : tensor.values<float>()) ASSERT_EQ(value, static_cast<float>(2 * other.normal()));
    for (float value : second.values<float>()) ASSERT_EQ(value, static_cast<float>(other.normal()));
    EXPECT_EQ(one.uniform(), other.uniform());
  }
}

TEST(Statistics, NumbersInSentences) {
  EXPECT_EQ(say(0.3667), "0.37");
  EXPECT_EQ(say(22.627, 3), "22.6");
  EXPECT_EQ(say(1.033e-10), "1e-10");
  EXPECT_EQ(say(4123456), "4.1e6");
  EXPECT_EQ(say(512.2, 2), "510");
  EXPECT_EQ(say(1), "1.0");
  EXPECT_EQ(say(0.9962), "1.0");
  EXPECT_EQ(say(0), "0.0");
}

TEST(Statistics, RandomNumbersRepeatAndDifferByStream) {
  Random one(5, 1), again(5, 1), other(5, 2), seeded(6, 1);
  int equal_stream = 0, equal_seed = 0;
  for (int i = 0; i < 100; ++i) {
    const double value = one.normal();
    EXPECT_EQ(value, again.normal());
    equal_stream += value == other.normal();
    equal_seed += value == seeded.normal();
  }
  EXPECT_EQ(equal_stream, 0);
  EXPECT_EQ(equal_seed, 0);
}

TEST(Statistics, NormalNumbersAreNormal) {
  Random random(3, 9);
  std::vector<double> values, fourth;
  for (int i = 0; i < 200000; ++i) {
    values.push_back(random.normal());
    fourth.push_back(std::pow(values.back(), 4));
  }
  EXPECT_NEAR(mean(values), 0, 0.01);
  EXPECT_NEAR(variance(values), 1, 0.015);
  EXPECT_NEAR(mean(fourth), 3, 0.12);
  for (int i = 0; i < 1000; ++i) {
    const std::int64_t below = random.below(7);
    EXPECT_GE(below, 0);
    EXPECT_LT(below, 7);
  }
}

TEST(Statistics, ExpectedMaximumOfNormals) {
  EXPECT_NEAR(expected_normal_maximum(1), 0, 1e-6);
  EXPECT_NEAR(expected_normal_maximum(2), 1 / std::sqrt(std::acos(-1.0)), 1e-5);  // 1 / sqrt(pi)
  EXPECT_NEAR(expected_normal_maximum(10), 1.53875, 1e-4);                        // tabulated
}

}  // namespace
}  // namespace rootdk::lab
