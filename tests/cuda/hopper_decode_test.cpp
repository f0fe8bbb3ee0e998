// Decode on Hopper: few queries against many keys, split and merged.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "conformance/cases.h"
#include "conformance/special_values.h"
#include "cuda/cuda_memory.h"
#include "cuda/device_case.h"

namespace rootdk::test {
namespace {

using HopperDecode = HopperTest;

TEST_F(HopperDecode, EveryHeadDim) {
  for (const std::int64_t head_dim : {64, 96, 128, 192, 256}) {
    for (const DType dtype : {DType::bf16, DType::f16}) {
      for (const std::int64_t kv_len : {1, 63, 64, 500, 3000}) {
        expect_close(make_case({.name = "decode_" + std::to_string(kv_len),
                                .batch = 2,
                                .heads = 8,
                                .kv_heads = 2,
                                .q_len = 1,
                                .kv_len = kv_len,
                                .head_dim = head_dim},
                               dtype));
      }
    }
  }
}

TEST_F(HopperDecode, SeveralQueriesWithEveryMask) {
  for (const std::int64_t q_len : {2, 5, 16}) {
    CaseSpec spec{.name = "queries", .batch = 3, .heads = 8, .kv_heads = 2, .q_len = q_len, .kv_len = 1200};
    spec.head_dim = 128;
    spec.scalars.causal = true;
    expect_close(make_case(spec, DType::bf16));
    spec.kv_lengths = {1200, 0, 517};
    expect_close(make_case(spec, DType::bf16));
    spec.scalars.window_left = 300;
    spec.sinks = true;
    expect_close(make_case(spec, DType::bf16));
    spec.scalars.causal = false;
    spec.alibi = true;
    spec.scalars.logits.softcap = 10;
    spec.scalars.dropout = 0.2;
    expect_close(make_case(spec, DType::bf16));
  }
}

// One query of up to eight heads a key head has a kernel of its own for narrow heads, whose blocks merge as a cluster
// of 1 to 16.
TEST_F(HopperDecode, OneQueryOfEveryGroup) {
  for (const std::int64_t group : {1, 3, 8, 9}) {
    for (const std::int64_t head_dim : {40, 64, 128}) {
      for (const int kv_len : {1, 100, 900, 5000}) {
        CaseSpec spec{.name = "group_" + std::to_string(group) + "_" + std::to_string(kv_len),
                      .batch = 2,
                      .heads = 3 * group,
                      .kv_heads = 3,
                      .q_len = 1,
                      .kv_len = kv_len,
                      .head_dim = head_dim};
        expect_close(make_case(spec, DType::bf16));
        spec.scalars.causal = true;
        spec.scalars.window_left = 200;
        spec.kv_lengths = {kv_len, kv_len / 2};
        spec.sinks = true;
        expect_close(make_case(spec, DType::f16));
        spec.alibi = true;
        spec.scalars.logits.softcap = 10;
        expect_close(make_case(spec, DType::bf16));
      }
    }
  }
}
// More key heads than clusters of several blocks run at the same time.
TEST_F(HopperDecode, OneQueryOfManyHeads) {
  for (const std::int64_t batch : {1, 3, 9, 17, 34}) {
    expect_close(make_case({.name = "heads_" + std::to_string(8 * batch),
                            .batch = batch,
                            .heads = 16,
                            .kv_heads = 8,
                            .q_len = 1,
                            .kv_len = 1000,
                            .head_dim = 64},
                           DType::bf16));
  }
}

TEST_F(HopperDecode, VeryFewRows) {
  for (const std::int64_t head_dim : {64, 80, 256}) {
    for (const std::int64_t q_len : {1, 2, 4}) {
      for (const std::int64_t kv_len : {2, 100, 3000}) {
        CaseSpec spec{.name = "rows_" + std::to_string(q_len) + "_" + std::to_string(kv_len),
                      .batch = 2,
                      .heads = 9,
                      .q_len = q_len,
                      .kv_len = kv_len,
                      .head_dim = head_dim};
        expect_close(make_case(spec, DType::bf16));
        spec.scalars.causal = true;
        spec.scalars.window_left = 200;
        spec.sinks = true;
        expect_close(make_case(spec, DType::f16));
        spec.alibi = true;
        spec.scalars.logits.softcap = 10;
        spec.scalars.dropout = 0.2;
        expect_close(make_case(spec, DType::bf16));
      }
    }
  }
}

// What lies in a cache past its length never matters.
void plant_garbage(AttentionCase& c) {
  const TensorView views[] = {c.k.view(), c.v.view()};
  for (const TensorView& view : views) {
    for (std::int64_t h = 0; h < view.size(1); ++h) {
      for (std::int64_t j = 700; j < view.size(2); ++j) {
        for (std::int64_t d = 0; d < view.size(3); ++d) {
          view.as<double>()[h * view.stride(1) + j * view.stride(2) + d] = d % 2 ? NAN : INFINITY;
        }
      }
    }
  }
}

TEST_F(HopperDecode, GarbagePastTheLength) {
  expect_close(make_case({.name = "garbage",
                          .heads = 4,
                          .kv_heads = 1,
                          .q_len = 1,
                          .kv_len = 1000,
                          .head_dim = 128,
                          .kv_lengths = {700},
                          .edit = plant_garbage},
                         DType::bf16));
}

// The value of the last key, which only the last query of a causal call sees.
void plant_nan_in_last_value(AttentionCase& c) {
  const TensorView v = c.v.view();
  for (std::int64_t h = 0; h < v.size(1); ++h) {
    v.as<double>()[h * v.stride(1) + (v.size(2) - 1) * v.stride(2) + 3] = NAN;
  }
}

TEST_F(HopperDecode, NaNReachesOnlyTheQueriesThatSeeIt) {
  for (const std::int64_t head_dim : {64, 96, 128, 192, 256}) {
    for (const std::int64_t kv_len : {1, 2, 60, 1500}) {  // one key: the first query sees none
      CaseSpec spec{.name = "seen", .heads = 4, .kv_heads = 2, .q_len = 2, .kv_len = kv_len, .head_dim = head_dim};
      spec.scalars.causal = true;
      spec.edit = plant_nan_in_last_value;
      expect_close(make_case(spec, DType::bf16));
    }
  }
}

// What a bias of -inf hides, from one query and from several.
TEST_F(HopperDecode, BiasHidesNaN) {
  for (const std::int64_t q_len : {1, 4}) {
    for (const std::int64_t kv_len : {60, 1500}) {  // one part, and several
      CaseSpec spec{.name = "hidden", .q_len = q_len, .kv_len = kv_len, .head_dim = 64};
      spec.bias = {1, 2, q_len, kv_len};
      spec.edit = plant_nan_under_minus_infinity;
      expect_close(make_case(spec, DType::bf16));
    }
  }
}

TEST_F(HopperDecode, SameBitsEveryRun) {
  const AttentionCase problem = make_case(
      {.name = "bits", .heads = 32, .kv_heads = 8, .q_len = 1, .kv_len = 20000, .head_dim = 128}, DType::bf16);
  const Results first = run_forward(problem, hopper(), Statistics::rows);
  for (int run = 0; run < 5; ++run) {
    for (const auto& [name, tensor] : run_forward(problem, hopper(), Statistics::rows)) {
      EXPECT_EQ(std::memcmp(tensor.view().data, first.at(name).view().data, tensor.bytes()), 0) << name;
    }
  }
}

}  // namespace
}  // namespace rootdk::test
