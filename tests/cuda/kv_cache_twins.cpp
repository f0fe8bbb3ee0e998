#include "cuda/kv_cache_twins.h"

#include <gtest/gtest.h>

#include <cstring>

namespace rootdk::test {
namespace {

void expect_equal(const Tensor& expected, const Tensor& actual, double tolerance) {
  const Difference d = difference(expected, convert(actual, DType::f64));
  EXPECT_LE(d.relative(), tolerance);
}

bool same_row(const Tensor& a, std::int64_t row_a, const Tensor& b, std::int64_t row_b) {
  const auto row_bytes = static_cast<std::int64_t>(Twins::kDim * size_of(a.dtype()));
  for (std::int64_t head = 0; head < Twins::kHeads; ++head) {
    const auto at = [&](const Tensor& t, std::int64_t row) {
      return t.view().as<std::byte>() + (head * t.size(2) + row) * row_bytes;
    };
    if (std::memcmp(at(a, row_a), at(b, row_b), static_cast<std::size_t>(row_bytes)) != 0) return false;
  }
  return true;
}

}  // namespace

std::int64_t pick_one(std::mt19937_64& random, std::initializer_list<std::int64_t> choices) {
  return choices.begin()[random() % choices.size()];
}

void pick_room(KvCacheConfig& config, std::mt19937_64& random, bool contiguous) {
  if (contiguous) {
    config.layout = KvLayout::contiguous;
    config.max_sequences = pick_one(random, {2, 4, 6});
    config.max_len = pick_one(random, {30, 77, 200});
  } else {
    config.page_size = pick_one(random, {16, 32, 48, 64, 128});
    config.pages = pick_one(random, {4, 12, 40});
  }
}

void expect_pages_of_every_size(const std::string& target, DType q_dtype, DType cache_dtype, double tolerance) {
  for (const std::int64_t page_size : {16, 48, 64, 256}) {
    SCOPED_TRACE(std::string(name_of(q_dtype)) + " over " + std::string(name_of(cache_dtype)) + ", pages of " +
                 std::to_string(page_size));
    Twins twins(target, q_dtype, cache_dtype, page_size);
    const AttendParams windowed{.window_left = 700, .window_keeps_first = 4};
    for (const AttendParams& params : {AttendParams{}, windowed}) {
      for (const std::int64_t tokens : {1, 5}) {
        const std::int64_t first = Twins::kLen - tokens;
        const KvStep host{.sequence = twins.host_one(), .tokens = tokens};
        const KvStep device{.sequence = twins.device_one(), .tokens = tokens};
        expect_equal(twins.attend_reference(first, tokens, {&host, 1}, params),
                     twins.attend_device(first, tokens, {&device, 1}, params), tolerance);
      }
    }
    twins.host().evict(twins.host_one(), 10, 500);
    twins.device().evict(twins.device_one(), 10, 500);
    const KvStep host{.sequence = twins.host_one()}, device{.sequence = twins.device_one()};
    expect_equal(twins.attend_reference(0, 1, {&host, 1}), twins.attend_device(0, 1, {&device, 1}), tolerance);
  }
}

void expect_same_bits_in_any_call(const std::string& target, DType q_dtype, DType cache_dtype, double softcap) {
  SCOPED_TRACE(std::string(name_of(q_dtype)) + " over " + std::string(name_of(cache_dtype)));
  Twins twins(target, q_dtype, cache_dtype, 64);
  AttendParams params;
  params.logits.softcap = softcap;
  constexpr std::int64_t kTokens = 40, kFirst = Twins::kLen - kTokens;
  const SequenceId one = twins.device_one(), other = twins.device().fork(one, 700);
  const KvStep all{.sequence = one, .tokens = kTokens};
  const Tensor together = twins.attend_device(kFirst, kTokens, {&all, 1}, params);
  const Tensor again = twins.attend_device(kFirst, kTokens, {&all, 1}, params);
  EXPECT_EQ(std::memcmp(together.view().data, again.view().data, again.bytes()), 0);
  for (const std::int64_t i : {0, 1, 17, 39}) {
    const KvStep single{.sequence = one, .tokens = 1, .position = kFirst + i};
    EXPECT_TRUE(same_row(twins.attend_device(kFirst + i, 1, {&single, 1}, params), 0, together, i)) << "token " << i;
  }
  // The rows of q follow one another: the last of these is the last of `together`.
  const KvStep batch[] = {{.sequence = other, .tokens = 2}, {.sequence = one, .tokens = 1}};
  const Tensor beside = twins.attend_device(Twins::kLen - 3, 3, batch, params);
  EXPECT_TRUE(same_row(beside, 2, together, kTokens - 1));
}

}  // namespace rootdk::test
