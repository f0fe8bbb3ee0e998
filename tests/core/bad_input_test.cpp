// Bad arguments of attention(): each row breaks one thing and checks the message. Nothing is written on an error.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "rootdk/attention.h"
#include "rootdk/error.h"
#include "support/tensors.h"

namespace rootdk::test {
namespace {

// A valid call: batch 2, heads 4 over 2, q_len 3, kv_len 5, head_dim 8, value_dim 6. Rows change what they like.
struct Call {
  Tensor q_memory = random_tensor(DType::f32, {2, 4, 3, 8}, 1), k_memory = random_tensor(DType::f32, {2, 2, 5, 8}, 2);
  Tensor v_memory = random_tensor(DType::f32, {2, 2, 5, 6}, 3), out_memory{DType::f32, {2, 4, 3, 6}};
  std::vector<Tensor> others;
  ConstTensorView q = q_memory, k = k_memory, v = v_memory;
  TensorView out = out_memory;
  AttentionParams params;
  AttentionStats stats;
  Execution execution;

  // A tensor that lives as long as the call.
  template <class... Sizes>
  TensorView make(DType dtype, Sizes... sizes) {
    others.emplace_back(dtype, Shape{sizes...});
    return others.back();
  }
  ConstTensorView ints(const std::vector<std::int32_t>& values) {
    others.push_back(i32_tensor(values));
    return others.back();
  }
  void pack(const std::vector<std::int32_t>& q_starts, const std::vector<std::int32_t>& kv_starts) {
    q = q.slice(0, 0, 1);
    k = k.slice(0, 0, 1);
    v = v.slice(0, 0, 1);
    out = out.slice(0, 0, 1);
    params.q_starts = ints(q_starts);
    params.kv_starts = ints(kv_starts);
  }
  void run() { attention(q, k, v, out, params, stats, execution); }
};

struct Row {
  const char* name;
  std::function<void(Call&)> spoil;
  const char* message;
};

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

const Row kRows[] = {
    {"NoQ", [](Call& c) { c.q = {}; }, "attention: q is not given"},
    {"NoK", [](Call& c) { c.k = {}; }, "attention: k is not given"},
    {"NoOut", [](Call& c) { c.out = {}; }, "attention: out is not given"},
    {"RankOfQ", [](Call& c) { c.q = c.make(DType::f32, 4, 3, 8); },
     "attention: q has rank 3, expected 4 (it is f32 [4, 3, 8])"},
    {"RankByHand", [](Call& c) { c.q.rank = 1000000; },
     "attention: q has rank 1000000, expected 4 (it is f32 of rank 1000000)"},
    {"RankOfV", [](Call& c) { c.v = c.make(DType::f32, 1, 2, 2, 5, 6); }, "attention: v has rank 5, expected 4"},
    {"TypeOfQ", [](Call& c) { c.q = c.make(DType::i32, 2, 4, 3, 8); },
     "attention: q has type i32, expected f32 or bf16 or f16 or f64"},
    {"MixedTypes", [](Call& c) { c.k = c.make(DType::bf16, 2, 2, 5, 8); }, "attention: k is bf16 but q is f32"},
    {"TypeOfOut", [](Call& c) { c.out = c.make(DType::f16, 2, 4, 3, 6); }, "attention: out is f16 but q is f32"},
    {"HeadDim", [](Call& c) { c.k = c.make(DType::f32, 2, 2, 5, 7); }, "attention: head_dim of q is 8 but of k 7"},
    {"ZeroHeadDim", [](Call& c) { c.q = c.make(DType::f32, 2, 4, 3, 0), c.k = c.make(DType::f32, 2, 2, 5, 0); },
     "attention: head_dim 0 and value_dim 6 must be at least 1"},
    {"Batch", [](Call& c) { c.k = c.make(DType::f32, 3, 2, 5, 8); },
     "attention: batch of q is 2 but of k 3 and of v 2"},
    {"KvHeads", [](Call& c) { c.v = c.make(DType::f32, 2, 4, 5, 6); }, "attention: kv_heads of k is 2 but of v 4"},
    {"KvLen", [](Call& c) { c.v = c.make(DType::f32, 2, 2, 4, 6); }, "attention: kv_len of k is 5 but of v 4"},
    {"Grouping", [](Call& c) { c.k = c.make(DType::f32, 2, 3, 5, 8), c.v = c.make(DType::f32, 2, 3, 5, 6); },
     "attention: heads 4 is not a multiple of kv_heads 3"},
    {"NoKvHeads", [](Call& c) { c.k = c.make(DType::f32, 2, 0, 5, 8), c.v = c.make(DType::f32, 2, 0, 5, 6); },
     "attention: heads 4 is not a multiple of kv_heads 0"},
    {"OutShape", [](Call& c) { c.out = c.make(DType::f32, 2, 4, 3, 8); },
     "attention: out is f32 [2, 4, 3, 8], expected [2, 4, 3, 6]"},
    {"LastStride", [](Call& c) { c.q.strides[3] = 2; }, "attention: the last dimension of q has stride 2, expected 1"},
    {"OverlappingOut", [](Call& c) { c.out.strides[1] = 6; }, "attention: the strides of out overlap: stride 6"},
    {"RepeatedOut", [](Call& c) { c.out.strides[0] = 0; }, "attention: the strides of out overlap: stride 0"},
    {"OutIsQ", [](Call& c) { c.v = c.k, c.out = c.q_memory; },
     "attention: out and q begin at the same address: what is written must not overlap what is read"},
    {"NegativeSize", [](Call& c) { c.q.shape[2] = -3; }, "attention: q has the negative size -3"},
    {"Overflow", [](Call& c) { c.q.shape[2] = INT64_MAX / 4; }, "whose extent overflows 64 bits"},
    {"StrideOverflow", [](Call& c) { c.k.strides[0] = INT64_MAX; }, "attention: k is f32 [2, 2, 5, 8], whose extent"},
    {"HugeLength", [](Call& c) { c.q.shape[2] = c.out.shape[2] = std::int64_t{1} << 31, c.q.strides[2] = 0; },
     "attention: q_len 2147483648 and kv_len 5 must be below 2^31"},
    {"NullData", [](Call& c) { c.k.data = nullptr; }, "attention: k is f32 [2, 2, 5, 8] but its data pointer is null"},
    {"DeviceOfK",
     [](Call& c) {
       c.k.device = {DeviceKind::cuda, 1};
     },
     "attention: k lies on cuda:1 but q lies on cpu"},
    {"DeviceOfOut",
     [](Call& c) {
       c.out.device = {DeviceKind::cuda, 0};
     },
     "attention: out lies on cuda:0 but q lies on cpu"},
    {"Score", [](Call& c) { c.params.score = static_cast<Score>(9); }, "attention: score 9 is none of dot (0)"},
    {"NanScale", [](Call& c) { c.params.logits.scale = kNaN; }, "attention: scale nan is not finite"},
    {"InfiniteScale", [](Call& c) { c.params.logits.scale = kInfinity; }, "attention: scale inf is not finite"},
    {"ZeroTemperature", [](Call& c) { c.params.logits.temperature = 0; },
     "attention: temperature 0 must be positive and finite"},
    {"NanTemperature", [](Call& c) { c.params.logits.temperature = kNaN; },
     "attention: temperature nan must be positive"},
    {"NegativeSoftcap", [](Call& c) { c.params.logits.softcap = -1; },
     "attention: softcap -1 must be finite and not negative"},
    // Kernels hold these in f32: an infinity there would be NaN in out.
    {"HugeScale", [](Call& c) { c.params.logits.scale = 1e39; },
     "attention: scale 1e+39 / temperature 1 is 1e+39, over the limit 1e+30 where q is f32"},
    {"TinyTemperature", [](Call& c) { c.params.logits.scale = 2, c.params.logits.temperature = 1e-40; },
     "attention: scale 2 / temperature 1e-40 is 2e+40, over the limit 1e+30 where q is f32"},
    {"HugeSoftcap", [](Call& c) { c.params.logits.softcap = 1e39; },
     "attention: softcap 1e+39 is over the limit 1e+30 where q is f32 (0: none)"},
    {"TinySoftcap", [](Call& c) { c.params.logits.scale = 2, c.params.logits.softcap = 1e-40; },
     "attention: scale / temperature 2 over softcap 1e-40 is over the limit 1e+30 where q is f32"},
    {"WindowLeft", [](Call& c) { c.params.window_left = -2; }, "attention: window_left -2 must be at least 0, or -1"},
    {"WindowRight", [](Call& c) { c.params.window_right = -7; }, "attention: window_right -7 must be at least 0"},
    {"DropoutOne", [](Call& c) { c.params.dropout = 1; }, "attention: dropout 1 is not in [0, 1)"},
    {"DropoutNegative", [](Call& c) { c.params.dropout = -0.1; }, "attention: dropout -0.1 is not in [0, 1)"},
    {"DropoutNan", [](Call& c) { c.params.dropout = kNaN; }, "attention: dropout nan is not in [0, 1)"},
    {"LengthsShape",
     [](Call& c) {
       c.params.kv_lengths = c.ints({1, 2, 3});
     },
     "attention: kv_lengths is i32 [3], expected [2]"},
    {"LengthsType", [](Call& c) { c.params.kv_lengths = c.make(DType::i64, 2); },
     "attention: kv_lengths has type i64, expected i32"},
    {"LengthsTooLong",
     [](Call& c) {
       c.params.kv_lengths = c.ints({5, 6});
     },
     "attention: kv_lengths[1] is 6, not in 0 to kv_len 5"},
    {"LengthsNegative",
     [](Call& c) {
       c.params.kv_lengths = c.ints({-1, 5});
     },
     "attention: kv_lengths[0] is -1, not in 0 to kv_len 5"},
    {"MaskShape", [](Call& c) { c.params.mask = c.make(DType::boolean, 2, 4, 3, 4); },
     "attention: mask is bool [2, 4, 3, 4], which does not broadcast to [2, 4, 3, 5]"},
    {"MaskRank", [](Call& c) { c.params.mask = c.make(DType::boolean, 3, 5); }, "attention: mask has rank 2"},
    {"MaskType", [](Call& c) { c.params.mask = c.make(DType::f32, 2, 4, 3, 5); },
     "attention: mask has type f32, expected bool"},
    {"BlockSizes", [](Call& c) { c.params.block_mask = c.make(DType::boolean, 1, 1, 1, 1); },
     "attention: block_mask needs block_q and block_kv of at least 1, got 0 and 0"},
    {"BlockShape",
     [](Call& c) {
       c.params.block_mask = c.make(DType::boolean, 1, 1, 2, 2);
       c.params.block_q = 2;
       c.params.block_kv = 2;
     },
     "attention: block_mask is bool [1, 1, 2, 2], which does not broadcast to [2, 4, 2, 3]"},
    {"BiasShape", [](Call& c) { c.params.bias = c.make(DType::f32, 2, 2, 3, 5); },
     "attention: bias is f32 [2, 2, 3, 5], which does not broadcast to [2, 4, 3, 5]"},
    {"BiasType", [](Call& c) { c.params.bias = c.make(DType::bf16, 1, 1, 3, 5); },
     "attention: bias has type bf16, expected f32"},
    {"BiasDevice",
     [](Call& c) {
       c.params.bias = c.make(DType::f32, 1, 1, 3, 5), c.params.bias.device = {DeviceKind::cuda, 0};
     },
     "attention: bias lies on cuda:0 but q lies on cpu"},
    {"TableHeads", [](Call& c) { c.params.logits.relative_table = c.make(DType::f32, 3, 9); },
     "attention: relative_table is f32 [3, 9], which does not broadcast to [4, 9]"},
    {"TableZero",
     [](Call& c) { c.params.logits.relative_table = c.make(DType::f32, 4, 9), c.params.logits.relative_zero = 9; },
     "attention: relative_zero 9 is not an entry of relative_table, which has 9"},
    {"SlopesShape", [](Call& c) { c.params.logits.alibi_slopes = c.make(DType::f32, 2); },
     "attention: alibi_slopes is f32 [2], expected [4]"},
    {"SinksType", [](Call& c) { c.params.logits.sinks = c.make(DType::f64, 4); },
     "attention: sinks has type f64, expected f32"},
    {"AdditiveWithoutVector", [](Call& c) { c.params.score = Score::additive; },
     "attention: the additive score needs additive_v [heads, head_dim]"},
    {"VectorWithoutAdditive", [](Call& c) { c.params.additive_v = c.make(DType::f32, 4, 8); },
     "attention: additive_v is given but the score is not additive"},
    {"AdditiveShape", [](Call& c) { c.params.score = Score::additive, c.params.additive_v = c.make(DType::f32, 4, 6); },
     "attention: additive_v is f32 [4, 6], expected [4, 8]"},
    {"OnlyQStarts",
     [](Call& c) {
       c.params.q_starts = c.ints({0, 3});
     },
     "attention: packed sequences need both q_starts and kv_starts"},
    {"PackedBatch",
     [](Call& c) {
       c.params.q_starts = c.ints({0, 3}), c.params.kv_starts = c.ints({0, 5});
     },
     "attention: packed sequences need batch 1, got 2"},
    {"PackedMask",
     [](Call& c) {
       c.pack({0, 3}, {0, 5}), c.params.mask = c.make(DType::boolean, 1, 1, 3, 5);
     },
     "attention: packed sequences do not combine with kv_lengths, mask, block_mask or bias"},
    {"StartsLength",
     [](Call& c) {
       c.pack({0, 3}, {0, 2, 5});
     },
     "attention: kv_starts is i32 [3], expected [2]"},
    {"StartsFirst",
     [](Call& c) {
       c.pack({1, 3}, {0, 5});
     },
     "attention: q_starts[0] is 1, expected 0"},
    {"StartsLast",
     [](Call& c) {
       c.pack({0, 3}, {0, 4});
     },
     "attention: kv_starts[1] is 4, expected the number of rows 5"},
    {"StartsDecrease",
     [](Call& c) {
       c.pack({0, 3, 2, 3}, {0, 1, 2, 5});
     },
     "attention: q_starts decreases from 3 to 2 at 2"},
    {"StartsRank",
     [](Call& c) {
       c.pack({0, 3}, {0, 5}), c.params.q_starts = c.make(DType::i32, 1, 2);
     },
     "attention: q_starts is i32 [1, 2], expected i32 [sequences + 1]"},
    {"LseShape", [](Call& c) { c.stats.lse = c.make(DType::f32, 2, 4, 5); },
     "attention: stats.lse is f32 [2, 4, 5], expected [2, 4, 3]"},
    {"EntropyType", [](Call& c) { c.stats.entropy = c.make(DType::bf16, 2, 4, 3); },
     "attention: stats.entropy has type bf16, expected f32"},
    {"ColumnMassShape", [](Call& c) { c.stats.column_mass = c.make(DType::f32, 2, 4, 3); },
     "attention: stats.column_mass is f32 [2, 4, 3], expected [2, 4, 5]"},
    {"OverlappingLse", [](Call& c) { c.stats.lse = c.make(DType::f32, 2, 4, 3), c.stats.lse.strides[0] = 1; },
     "attention: the strides of stats.lse overlap"},
    {"Stride", [](Call& c) { c.params.stats.stride = 0; }, "attention: stats.stride 0 must be at least 1"},
    {"PooledTooFine", [](Call& c) { c.stats.pooled_map = c.make(DType::f32, 2, 4, 4, 5); },
     "attention: stats.pooled_map has 4 x 5 cells for a matrix of 3 x 5"},
    {"PooledPacked",
     [](Call& c) {
       c.pack({0, 3}, {0, 5}), c.stats.pooled_map = c.make(DType::f32, 1, 4, 2, 2);
     },
     "attention: stats.pooled_map does not combine with packed sequences"},
    {"RowsWithoutWeights", [](Call& c) { c.params.stats.weight_rows = c.ints({0}); },
     "attention: stats.weight_rows is given but stats.weights is not"},
    {"RowOutOfRange",
     [](Call& c) {
       c.stats.weights = c.make(DType::f32, 2, 4, 2, 5), c.params.stats.weight_rows = c.ints({0, 3});
     },
     "attention: stats.weight_rows[1] is 3, not a row of 3"},
    {"WeightsShape", [](Call& c) { c.stats.weights = c.make(DType::f32, 2, 4, 2, 5); },
     "attention: stats.weights is f32 [2, 4, 2, 5], expected [2, 4, 3, 5]"},
    {"UnknownTarget", [](Call& c) { c.execution.target = "abacus"; },
     "attention: there is no target abacus in this build"},
};

class BadInput : public testing::TestWithParam<Row> {};

TEST_P(BadInput, NamesTheValuesAndWritesNothing) {
  Call call;
  for (float& x : call.out_memory.values<float>()) x = 42;
  call.others.reserve(8);
  GetParam().spoil(call);
  try {
    call.run();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr(GetParam().message));
    EXPECT_THAT(error.what(), testing::StartsWith("attention: "));
  }
  EXPECT_THAT(call.out_memory.values<float>(), testing::Each(42.0f));
  // explain() says the same without throwing.
  const Explanation explanation = explain(call.q, call.k, call.v, call.out, call.params, call.stats, call.execution);
  EXPECT_TRUE(explanation.chosen.empty());
  EXPECT_FALSE(explanation.error.empty());
}

INSTANTIATE_TEST_SUITE_P(Attention, BadInput, testing::ValuesIn(kRows),
                         [](const auto& info) { return info.param.name; });

TEST(GoodInput, TheCallBehindTheTableRuns) {
  Call call;
  EXPECT_NO_THROW(call.run());
}

}  // namespace
}  // namespace rootdk::test
