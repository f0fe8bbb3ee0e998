#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "rootdk/attention.h"
#include "rootdk/error.h"
#include "support/tensors.h"

namespace rootdk::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(MergeStates, HandValues) {
  const double out[] = {8, 4}, lse[] = {0, std::log(3.0)};
  const Tensor parts = tensor_of(DType::f32, {2, 1, 1, 1, 1}, out), weights = tensor_of(DType::f32, {2, 1, 1, 1}, lse);
  Tensor merged(DType::f32, {1, 1, 1, 1}), merged_lse(DType::f32, {1, 1, 1});
  merge_states(parts, weights, merged, merged_lse);
  EXPECT_FLOAT_EQ(merged.values<float>()[0], 5);
  EXPECT_FLOAT_EQ(merged_lse.values<float>()[0], std::log(4.0f));
}

TEST(MergeStates, EmptyPartsAddNothing) {
  const double out[] = {NAN, 4}, lse[] = {-kInfinity, 1}, empty[] = {-kInfinity, -kInfinity};
  const Tensor parts = tensor_of(DType::f32, {2, 1, 1, 1, 1}, out);
  Tensor merged(DType::f32, {1, 1, 1, 1}), merged_lse(DType::f32, {1, 1, 1});
  merge_states(parts, tensor_of(DType::f32, {2, 1, 1, 1}, lse), merged, merged_lse);
  EXPECT_EQ(merged.values<float>()[0], 4);
  EXPECT_EQ(merged_lse.values<float>()[0], 1);
  merge_states(parts, tensor_of(DType::f32, {2, 1, 1, 1}, empty), merged, merged_lse);
  EXPECT_EQ(merged.values<float>()[0], 0);
  EXPECT_EQ(merged_lse.values<float>()[0], -kInfinity);
}

TEST(MergeStates, RefusesWrongShapes) {
  const Tensor out(DType::f32, {2, 1, 3, 4, 5}), lse(DType::f32, {2, 1, 3, 9});
  Tensor merged(DType::f32, {1, 3, 4, 5});
  try {
    merge_states(out, lse, merged);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("merge_states: lse is f32 [2, 1, 3, 9], expected [2, 1, 3, 4]"));
  }
}

}  // namespace
}  // namespace rootdk::test
