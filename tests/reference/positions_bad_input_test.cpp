// Bad arguments of the position functions: each row checks the message.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <functional>

#include "rootdk/error.h"
#include "rootdk/positions.h"
#include "support/tensors.h"

namespace rootdk::test {
namespace {

Tensor f32(std::initializer_list<std::int64_t> shape) { return Tensor(DType::f32, shape); }

// An output that lives until the end of the program: a temporary cannot be one.
TensorView output(Tensor tensor) {
  static std::deque<Tensor> kept;
  return kept.emplace_back(std::move(tensor)).view();
}

void rotate(const RopeParams& params, std::int64_t head_dim = 8) {
  Tensor x = f32({1, 2, 3, head_dim});
  rope(x, x, params);
}

void rotate_at(const Tensor& positions) {
  Tensor x = f32({2, 2, 3, 8});
  rope(x, x, {}, positions);
}

struct Row {
  const char* name;
  std::function<void()> call;
  const char* message;
};

const Row kRows[] = {
    {"SinusoidalRank",
     [] {
       sinusoidal_positions(output(f32({1, 2, 3})));
     },
     "sinusoidal_positions: out has rank 3, expected 2"},
    {"SinusoidalType",
     [] {
       sinusoidal_positions(output(Tensor(DType::i32, {2, 3})));
     },
     "sinusoidal_positions: out has type i32"},
    {"SinusoidalBase",
     [] {
       sinusoidal_positions(output(f32({2, 4})), {.base = -1});
     },
     "sinusoidal_positions: base -1 must be positive and finite"},
    {"LearnedDim",
     [] {
       add_learned_positions(output(f32({1, 2, 3})), f32({5, 4}));
     },
     "add_learned_positions: dim of x is 3 but of table 4"},
    {"LearnedOffset",
     [] {
       add_learned_positions(output(f32({1, 2, 3})), f32({5, 3}), {}, -1);
     },
     "add_learned_positions: position -1 of token 0 in batch entry 0 is not a row of the table, which has 5"},
    {"LearnedOverflow",
     [] {
       add_learned_positions(output(f32({1, 2, 3})), f32({5, 3}), {}, INT64_MAX);
     },
     "add_learned_positions: offset 9223372036854775807 plus the length 2 overflows 64 bits"},
    {"LearnedBackwardDim",
     [] {
       add_learned_positions_backward(f32({1, 2, 3}), output(f32({5, 4})));
     },
     "add_learned_positions_backward: dim of grad_x is 3 but of grad_table 4"},
    {"RopeOddDim", [] { rotate({}, 7); }, "rope: rotary_dim 7 is odd, but dimensions rotate in pairs"},
    {"RopeRotaryDim", [] { rotate({.rotary_dim = 10}); }, "rope: rotary_dim 10 is not in 0 to head_dim 8"},
    {"RopeBase", [] { rotate({.base = 0}); }, "rope: base 0 must be positive and finite"},
    {"RopeFactor", [] { rotate({.scaling = RopeScaling::linear, .factor = NAN}); },
     "rope: factor nan must be positive and finite"},
    {"RopeLayout", [] { rotate({.layout = static_cast<RopeLayout>(5)}); }, "rope: layout 5 is none of half_split (0)"},
    {"RopeScaling", [] { rotate({.scaling = static_cast<RopeScaling>(9)}); }, "rope: scaling 9 is none of none (0)"},
    {"YarnContext", [] { rotate({.scaling = RopeScaling::yarn, .factor = 2}); },
     "rope: original_max_position 0 must be positive for yarn and llama3"},
    {"YarnBetas",
     [] { rotate({.scaling = RopeScaling::yarn, .original_max_position = 8, .beta_fast = 1, .beta_slow = 2}); },
     "rope: beta_fast 1 and beta_slow 2 must be positive"},
    {"Llama3Factors",
     [] { rotate({.scaling = RopeScaling::llama3, .original_max_position = 8, .low_freq_factor = 4}); },
     "rope: low_freq_factor 4 must be positive and below high_freq_factor 4"},
    {"RopeShapes",
     [] {
       Tensor out = f32({1, 2, 4, 8});
       rope(f32({1, 2, 3, 8}), out);
     },
     "rope: out is f32 [1, 2, 4, 8], expected [1, 2, 3, 8]"},
    {"RopePositionsType",
     [] {
       rotate_at(f32({1, 3}));
     },
     "rope: positions has type f32, expected i32 or i64"},
    {"RopePositionsShape",
     [] {
       rotate_at(Tensor(DType::i32, {2, 4}));
     },
     "rope: positions is i32 [2, 4], which does not broadcast to [2, 3]"},
    {"RopePositionsShort",
     [] {
       rotate_at(Tensor(DType::i32, {2, 1}));
     },
     "rope: positions is i32 [2, 1], expected one for each of 3 rows"},
    {"FrequenciesShape", [] { rope_frequencies(output(f32({3})), 8); },
     "rope_frequencies: out is f32 [3], expected [4]"},
    {"T5Buckets", [] { t5_bucket(1, {.buckets = 3}); },
     "t5_bucket: buckets 3 must be even and at least 4 (bidirectional)"},
    {"T5MaxDistance", [] { t5_bucket(1, {.buckets = 32, .max_distance = 8}); },
     "t5_bucket: max_distance 8 must be over 8"},
    {"T5HugeDistance", [] { t5_bucket(1, {.max_distance = INT64_MAX}); },
     "t5_bucket: max_distance 9223372036854775807 must be below 2^31"},
    {"T5Entries",
     [] {
       t5_relative_table(f32({32, 2}), output(f32({2, 256})));
     },
     "t5_relative_table: table has 256 entries, expected 2 max_distance + 1 = 257"},
    {"T5Rows",
     [] {
       t5_relative_table(f32({31, 2}), output(f32({2, 257})));
     },
     "t5_relative_table: weights has 31 rows, expected buckets 32"},
    {"T5Heads",
     [] {
       t5_relative_table_backward(f32({3, 257}), output(f32({32, 2})));
     },
     "t5_relative_table_backward: heads of table is 3 but of weights 2"},
    {"AlibiType", [] { alibi_slopes(output(Tensor(DType::bf16, {4}))); }, "alibi_slopes: out has type bf16"},
    {"XlShapes",
     [] {
       transformer_xl_bias(f32({1, 2, 3, 4}), f32({2, 4}), f32({2, 5, 3}), output(f32({1, 2, 3, 6})));
     },
     "transformer_xl_bias: r is f32 [2, 5, 3], expected [2, 5, 4]"},
    {"XlZero",
     [] {
       transformer_xl_bias(f32({1, 2, 3, 4}), f32({2, 4}), f32({2, 5, 4}), output(f32({1, 2, 3, 6})), {.zero = 5});
     },
     "transformer_xl_bias: zero 5 is not an entry of r, which has 5"},
    {"XlScale",
     [] {
       transformer_xl_bias(f32({1, 2, 3, 4}), f32({2, 4}), f32({2, 5, 4}), output(f32({1, 2, 3, 6})), {.scale = NAN});
     },
     "transformer_xl_bias: scale nan is not finite"},
};

class BadPositions : public testing::TestWithParam<Row> {};

TEST_P(BadPositions, NameTheValues) {
  try {
    GetParam().call();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr(GetParam().message));
  }
}

INSTANTIATE_TEST_SUITE_P(Positions, BadPositions, testing::ValuesIn(kRows),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace rootdk::test
