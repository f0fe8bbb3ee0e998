// Caches of one byte a number: every number that a byte can hold goes through every implementation as a key
// and as a value.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "rootdk/rootdk.h"
#include "support/tensors.h"

namespace rootdk::test {
namespace {

constexpr std::int64_t kDim = 256;  // one dimension for each byte

// The number that a byte holds; its largest magnitude makes the scale of a row 1. 0 for NaN, which is never stored.
float number_of(DType dtype, int byte) {
  if (dtype == DType::i8) return std::max(-127.0f, static_cast<float>(static_cast<std::int8_t>(byte)));
  Float8E4M3 number;
  number.bits = static_cast<std::uint8_t>(byte);
  return std::isnan(static_cast<float>(number)) ? 0.0f : static_cast<float>(number);
}

std::vector<std::string> targets() {
  KvCache cache({.dtype = DType::f8e4m3, .kv_heads = 1, .head_dim = 16, .pages = 1});
  Tensor token(DType::f32, {1, 1, 1, 16}), out(DType::f32, {1, 1, 1, 16});
  const KvStep step{.sequence = cache.open()};
  append(cache, token, token, {&step, 1});
  std::vector<std::string> names;
  for (const auto& candidate : explain_attend(cache, token, out, {&step, 1}).candidates) {
    if (candidate.refusal.empty()) names.push_back(candidate.name);
  }
  return names;
}

class Bytes : public testing::TestWithParam<std::string> {};

// One key has the weight 1: the output is its value, and lse is its score.
TEST_P(Bytes, EveryNumberComesBackExactly) {
  for (const DType dtype : {DType::i8, DType::f8e4m3}) {
    KvCache cache({.dtype = dtype, .kv_heads = 1, .head_dim = kDim, .page_size = 16, .pages = 1});
    Tensor row(DType::f32, {1, 1, 1, kDim});
    for (int byte = 0; byte < kDim; ++byte)
      row.values<float>()[static_cast<std::size_t>(byte)] = number_of(dtype, byte);
    const KvStep step{.sequence = cache.open()};
    append(cache, row, row, {&step, 1});
    for (const DType q_dtype : {DType::f32, DType::bf16}) {
      for (int byte = 0; byte < kDim; ++byte) {
        Tensor q(DType::f32, {1, 1, 1, kDim}), out(q_dtype, {1, 1, 1, kDim}), lse(DType::f32, {1, 1, 1});
        q.values<float>()[static_cast<std::size_t>(byte)] = 1.0f;
        attend(cache, convert(q, q_dtype), out, {{.sequence = step.sequence}}, {.logits = {.scale = 1.0}}, {.lse = lse},
               {.target = GetParam()});
        const double wanted = number_of(dtype, byte);
        EXPECT_NEAR(doubles(lse).front(), wanted, 2e-6 * std::fabs(wanted)) << name_of(dtype) << " key, byte " << byte;
        if (byte == 0) {
          EXPECT_EQ(doubles(out), doubles(row)) << name_of(dtype) << " value";
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, Bytes, testing::ValuesIn(targets()), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace rootdk::test
