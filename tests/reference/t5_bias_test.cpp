#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "rootdk/positions.h"
#include "support/tensors.h"

namespace rootdk::test {
namespace {

// Worked by hand from the formula for the default encoder: 16 buckets a side, 8 of them for single distances.
TEST(T5Bias, EncoderBuckets) {
  const std::pair<int, int> left[] = {{0, 0},   {1, 1},   {7, 7},   {8, 8},   {11, 8},   {12, 9},   {15, 9},
                                      {16, 10}, {22, 10}, {23, 11}, {31, 11}, {32, 12},  {45, 12},  {46, 13},
                                      {63, 13}, {64, 14}, {90, 14}, {91, 15}, {127, 15}, {128, 15}, {100000, 15}};
  for (const auto& [distance, bucket] : left) {
    EXPECT_EQ(t5_bucket(distance), bucket) << distance;
    if (distance > 0) {
      EXPECT_EQ(t5_bucket(-distance), bucket + 16) << -distance;
    }
  }
}

TEST(T5Bias, DecoderBuckets) {
  const T5BucketParams decoder{.bidirectional = false};
  const std::pair<int, int> table[] = {{-5, 0},  {0, 0},   {15, 15}, {16, 16},  {18, 16},  {19, 17},  {32, 21},
                                       {63, 26}, {64, 26}, {65, 26}, {112, 30}, {113, 31}, {127, 31}, {500, 31}};
  for (const auto& [distance, bucket] : table) EXPECT_EQ(t5_bucket(distance, decoder), bucket) << distance;
}

// Checkpoints were trained with buckets computed in float32: the double here must agree at every distance.
TEST(T5Bias, AgreesWithSinglePrecision) {
  for (const bool bidirectional : {true, false}) {
    const T5BucketParams p{.bidirectional = bidirectional};
    const int side = bidirectional ? 16 : 32, single = side / 2;
    for (int distance = single; distance <= 128; ++distance) {
      const float share = std::log(static_cast<float>(distance) / static_cast<float>(single)) /
                          static_cast<float>(std::log(128.0 / single)) * static_cast<float>(side - single);
      EXPECT_EQ(t5_bucket(distance, p), std::min(single + static_cast<int>(share), side - 1)) << distance;
    }
  }
}

TEST(T5Bias, TableFollowsTheBucketsAndItsGradientIsTheAdjoint) {
  const T5BucketParams p{.bidirectional = true, .buckets = 8, .max_distance = 10};
  const Tensor weights = random_tensor(DType::f64, {8, 3}, 1), grad = random_tensor(DType::f64, {3, 21}, 2);
  Tensor table(DType::f64, {3, 21}), grad_weights(DType::f64, {8, 3});
  t5_relative_table(weights, table, p);
  for (std::int64_t head = 0; head < 3; ++head) {
    for (std::int64_t entry = 0; entry < 21; ++entry) {
      const auto n = static_cast<std::size_t>(head * 21 + entry);
      EXPECT_EQ(doubles(table)[n], doubles(weights)[static_cast<std::size_t>(t5_bucket(entry - 10, p) * 3 + head)]);
    }
  }
  t5_relative_table_backward(grad, grad_weights, p);
  double forward = 0, backward = 0;
  for (std::size_t n = 0; n < 63; ++n) forward += doubles(table)[n] * doubles(grad)[n];
  for (std::size_t n = 0; n < 24; ++n) backward += doubles(weights)[n] * doubles(grad_weights)[n];
  EXPECT_NEAR(forward, backward, 1e-12);
}

}  // namespace
}  // namespace rootdk::test
