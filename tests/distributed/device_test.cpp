// The passes of a device over memory of the host: which calls they make, what they exchange, how they add up. On a GPU
// tests/cuda/distributed_test.cpp runs the same cases.

#include <gtest/gtest.h>

#include <cstring>

#include "distributed/device_parts.h"
#include "distributed/device_ranks.h"
#include "rootdk/error.h"

namespace rootdk::test {
namespace {

void copy_on_host(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }

class DeviceRoute : public testing::TestWithParam<Route> {};

TEST_P(DeviceRoute, HasTheBitsOfOneCall) {
  const DeviceRanks where{.copy = &copy_on_host, .route = GetParam()};
  const std::int64_t len = GetParam() == Route::host ? 2200 : 1300;
  for (const AttentionCase& problem : device_cases({.len = len, .head_dim = 16})) {
    expect_bits_of_one_call(where, problem, 1e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(Routes, DeviceRoute, testing::Values(Route::host, Route::device));

TEST(DeviceParts, SeeTheKeysOfTheirRows) {
  using distributed::device_parts;
  distributed::Whole whole{.window = {.causal = true, .left = 1500}};
  whole.sequences.push_back({.q_len = 8000, .kv_len = 8000});
  const auto parts = device_parts(whole, {{0, 1000}, {5000, 6000}});
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].keys, (RowRange{0, 1000}));
  EXPECT_EQ(parts[1].keys, (RowRange{3072, 6000}));  // 3500 is the first that is seen; tiles begin at 3072
  EXPECT_TRUE(parts[1].window.causal);
  EXPECT_EQ(parts[1].window.left, 1500);
  const auto calls = distributed::device_calls(parts, 1);
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0].rows, (RowRange{1000, 2000}));  // those with the most keys first
  EXPECT_EQ(distributed::keys_seen(parts).size(), 2u);
}

TEST(DeviceParts, ShiftTheWindowOfRowsThatAreNotTheLast) {
  distributed::Whole whole{.window = {.left = 10, .right = 20}};
  whole.sequences.push_back({.q_len = 4000, .kv_len = 4000});
  const auto parts = distributed::device_parts(whole, {{0, 100}, {3950, 4000}});
  EXPECT_EQ(parts[0].keys, (RowRange{0, 120}));
  EXPECT_EQ(parts[0].window.left, 30);  // the last query is at the last key, 20 behind its place
  EXPECT_TRUE(parts[0].window.causal);
  EXPECT_EQ(parts[1].keys, (RowRange{3072, 4000}));
  EXPECT_EQ(parts[1].window.right, 20);
}

TEST(DeviceParts, PackShortRunsSideBySide) {
  distributed::Whole whole{.window = {.causal = true}};
  whole.sequences.push_back({.q_len = 1000, .kv_len = 1000});
  const auto parts = distributed::device_parts(whole, {{0, 5}, {100, 300}, {990, 1000}});
  EXPECT_EQ(distributed::device_calls(parts, 1).size(), 1u);
  // Packed sequences have no batch: few rows are a call for each entry.
  EXPECT_EQ(distributed::device_calls(parts, 3).size(), 7u);
}

TEST(DeviceParts, RefuseFewerKeysThanQueries) {
  distributed::Whole whole{.window = {.causal = true}};
  whole.sequences.push_back({.q_len = 10, .kv_len = 7});
  EXPECT_NE(distributed::refuse_parts(whole), "");
  whole.window = {};
  EXPECT_EQ(distributed::refuse_parts(whole), "");
}

// A CUDA tensor where there is no device, or what is not served there, is an error on every rank.
TEST(DeviceCalls, AreRefusedByName) {
  float memory[64] = {};
  const Device device{DeviceKind::cuda, 0};
  const auto errors = errors_of_ranks(2, [&](Transport& transport) {
    AttentionParams params;
    params.dropout = transport.rank() == 1 ? 0.5 : 0;
    const TensorView rows(memory, {1, 1, 0, 8}, device);
    distributed_attention(transport, rows, rows, rows, rows, {.queries = contiguous_shares(0, 2)}, params);
  });
  EXPECT_NE(errors[1].find("dropout is not served across ranks on a GPU"), std::string::npos) << errors[1];
  EXPECT_FALSE(errors[0].empty());
}

}  // namespace
}  // namespace rootdk::test
