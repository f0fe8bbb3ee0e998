// What random schedules of short sequences do not reach: caches of several chunks, numbers of threads, the batch
// around.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "rootdk/rootdk.h"
#include "support/tensors.h"

namespace rootdk::test {
namespace {

constexpr std::int64_t kHeads = 4, kKvHeads = 2, kDim = 32, kLen = 2500;  // three chunks of keys

struct Long {
  explicit Long(DType dtype)
      : cache({.dtype = dtype, .kv_heads = kKvHeads, .head_dim = kDim, .page_size = 16, .pages = 600}),
        k(random_tensor(DType::f32, {1, kKvHeads, kLen, kDim}, 1)),
        v(random_tensor(DType::f32, {1, kKvHeads, kLen, kDim}, 2)),
        q(random_tensor(DType::f32, {1, kHeads, kLen, kDim}, 3)) {
    one = cache.open();
    append(cache, k, v, {{.sequence = one, .tokens = kLen}});
  }

  Tensor decode(std::int64_t position, std::int64_t tokens, int threads, const AttendParams& params = {}) {
    Tensor out(DType::f32, {1, kHeads, tokens, kDim});
    attend(cache, q.view().slice(2, position, position + tokens), out,
           {{.sequence = one, .tokens = tokens, .position = position}}, params, {},
           {.cpu = {.executor = &shared_executor(threads)}});
    return out;
  }

  KvCache cache;
  Tensor k, v, q;
  SequenceId one = SequenceId::none;
};

class LongCaches : public testing::TestWithParam<DType> {};

TEST_P(LongCaches, AgreeWithTheReference) {
  Long test(GetParam());
  for (const AttendParams& params : {AttendParams{}, AttendParams{.window_left = 1500, .window_keeps_first = 4}}) {
    const Tensor out = test.decode(kLen - 3, 3, 2, params);
    Tensor expected(DType::f32, {1, kHeads, 3, kDim});
    attend(test.cache, test.q.view().slice(2, kLen - 3, kLen), expected, {{.sequence = test.one, .tokens = 3}}, params,
           {}, {.target = "reference"});
    EXPECT_LT(difference(convert(expected, DType::f64), convert(out, DType::f64)).largest, 1e-4);
  }
}

TEST_P(LongCaches, HaveTheSameBitsForAnyThreadsAndAnySplitOfTheTokens) {
  Long test(GetParam());
  const AttendParams params{.window_left = 2000, .window_keeps_first = 4};
  const std::vector<double> expected = doubles(test.decode(kLen - 40, 40, 1, params));
  EXPECT_EQ(doubles(test.decode(kLen - 40, 40, 3, params)), expected);
  // Token by token.
  for (const std::int64_t i : {0, 1, 17, 39}) {
    const std::vector<double> single = doubles(test.decode(kLen - 40 + i, 1, 2, params));
    for (std::int64_t h = 0; h < kHeads; ++h) {
      for (std::int64_t d = 0; d < kDim; ++d) {
        ASSERT_EQ(single[static_cast<std::size_t>(h * kDim + d)],
                  expected[static_cast<std::size_t>((h * 40 + i) * kDim + d)])
            << "token " << i;
      }
    }
  }
}

TEST_P(LongCaches, HaveTheSameBitsInAnyBatch) {
  Long test(GetParam());
  const SequenceId other = test.cache.fork(test.one, 700);
  Tensor alone(DType::f32, {1, kHeads, 1, kDim}), both(DType::f32, {1, kHeads, 3, kDim});
  const ConstTensorView q = test.q;
  attend(test.cache, q.slice(2, 2, 3), alone, {{.sequence = test.one}});
  attend(test.cache, q.slice(2, 0, 3), both, {{.sequence = other, .tokens = 2}, {.sequence = test.one}});
  EXPECT_EQ(doubles(both.view().slice(2, 2, 3)), doubles(alone));
}

// Key heads are walked side by side in small pages, up to 16 of 18 here: by one thread through all chunks, by two a
// chunk at a time, and by seven not at all.
TEST_P(LongCaches, ManyHeadsHaveTheSameBitsForAnyThreads) {
  constexpr std::int64_t kMany = 18, kSmall = 8, kLong = 9000;
  KvCache cache({.dtype = GetParam(), .kv_heads = kMany, .head_dim = kSmall, .page_size = 16, .pages = 600});
  const SequenceId sequence = cache.open();
  append(cache, random_tensor(DType::f32, {1, kMany, kLong, kSmall}, 4),
         random_tensor(DType::f32, {1, kMany, kLong, kSmall}, 5), {{.sequence = sequence, .tokens = kLong}});
  const Tensor q = random_tensor(DType::f32, {1, kMany, 1, kSmall}, 6);
  const auto attended = [&](Execution execution) {
    Tensor out(DType::f32, {1, kMany, 1, kSmall});
    attend(cache, q, out, {{.sequence = sequence}}, {}, {}, execution);
    return out;
  };
  const Tensor one = attended({.cpu = {.executor = &shared_executor(1)}});
  EXPECT_EQ(doubles(attended({.cpu = {.executor = &shared_executor(2)}})), doubles(one));
  EXPECT_EQ(doubles(attended({.cpu = {.executor = &shared_executor(7)}})), doubles(one));
  const Tensor expected = attended({.target = "reference"});
  EXPECT_LT(difference(convert(expected, DType::f64), convert(one, DType::f64)).largest, 1e-4);
}

// Beside keys that are read stand keys that are not: later tokens of the same call, and what a window hides.
TEST_P(LongCaches, KeysThatARowDoesNotReadMayHoldAnything) {
  Long test(GetParam());
  constexpr std::int64_t kHidden = 36, kLast = 77;  // tokens of the same tiles as keys that are read
  Tensor k = convert(test.k, DType::f32), v = convert(test.v, DType::f32);
  for (std::int64_t h = 0; h < kKvHeads; ++h) {
    for (const std::int64_t t : {kHidden, kLast}) {
      for (std::int64_t d = 0; d < kDim; ++d) {
        k.values<float>()[static_cast<std::size_t>((h * kLen + t) * kDim + d)] = std::numeric_limits<float>::infinity();
        v.values<float>()[static_cast<std::size_t>((h * kLen + t) * kDim + d)] = std::nanf("");
      }
    }
  }
  const AttendParams params{.window_left = 35, .window_keeps_first = 2};  // token 72 sees 37 to 72, and the first two
  auto decode = [&](const Tensor& keys, const Tensor& values) {
    KvCache cache({.dtype = GetParam(), .kv_heads = kKvHeads, .head_dim = kDim, .page_size = 16, .pages = 6});
    const KvStep step{.sequence = cache.open(), .tokens = 78};
    append(cache, keys.view().slice(2, 0, 78), values.view().slice(2, 0, 78), {&step, 1});
    Tensor out(DType::f32, {1, kHeads, 6, kDim});
    attend(cache, test.q.view().slice(2, 72, 78), out, {{.sequence = step.sequence, .tokens = 6, .position = 72}},
           params);
    return out;
  };
  const Tensor clean = decode(test.k, test.v), out = decode(k, v);
  // Tokens 72 to 76 read neither of the two; token 77 is one of them.
  EXPECT_EQ(doubles(out.view().slice(2, 0, 5)), doubles(clean.view().slice(2, 0, 5)));
  EXPECT_TRUE(std::isnan(doubles(out.view().slice(2, 5, 6)).front()));
}

struct Outliers {
  const char* name;
  float first_query, first_key;  // factors on the first number of each row
  float odd_values;              // factor on the values of every other token
};

// The largest error of the chosen kernels against the reference, relative to the largest output.
double error_of(DType dtype, const Outliers& outliers, std::int64_t head_dim, std::int64_t value_dim) {
  constexpr std::int64_t kTokens = 300;
  Tensor q = random_tensor(DType::f32, {1, kHeads, 3, head_dim}, 7);
  Tensor k = random_tensor(DType::f32, {1, kKvHeads, kTokens, head_dim}, 8);
  Tensor v = random_tensor(DType::f32, {1, kKvHeads, kTokens, value_dim}, 9);
  const auto scale = [](Tensor& rows, std::int64_t dim, auto factor_of) {
    std::int64_t i = 0;
    for (float& x : rows.values<float>()) {
      x *= factor_of(i / dim, i % dim);
      ++i;
    }
  };
  scale(q, head_dim, [&](std::int64_t, std::int64_t d) { return d == 0 ? outliers.first_query : 1.0f; });
  scale(k, head_dim, [&](std::int64_t, std::int64_t d) { return d == 0 ? outliers.first_key : 1.0f; });
  scale(v, value_dim, [&](std::int64_t row, std::int64_t) { return row % 2 == 1 ? outliers.odd_values : 1.0f; });
  KvCache cache({.dtype = dtype,
                 .kv_heads = kKvHeads,
                 .head_dim = head_dim,
                 .value_dim = value_dim,
                 .page_size = 16,
                 .pages = 20});
  const KvStep step{.sequence = cache.open(), .tokens = kTokens};
  append(cache, k, v, {&step, 1});
  const auto attended = [&](const std::string& target) {
    Tensor out(DType::f32, {1, kHeads, 3, value_dim});
    attend(cache, q, out, {{.sequence = step.sequence, .tokens = 3}}, {}, {}, {.target = target});
    return convert(out, DType::f64);
  };
  return difference(attended("reference"), attended("")).relative();
}

// Numbers of one tile that differ by many orders of magnitude: kernels have scales of their own for queries and
// weights.
TEST_P(LongCaches, OutliersAgreeWithTheReference) {
  // Kernels of int8 give a row of q one scale, and its largest number 15 bits.
  const double tolerance = GetParam() == DType::i8 ? 1e-3 : 2e-4;
  for (const Outliers& outliers :
       {Outliers{"none", 1.0f, 1.0f, 1.0f}, Outliers{"queries", 30.0f, 0.03f, 1.0f},
        Outliers{"keys", 1e-3f, 100.0f, 1.0f}, Outliers{"large values", 1.0f, 1.0f, 1e4f},
        Outliers{"small values", 1.0f, 1.0f, 1e-4f}, Outliers{"zeros among the values", 1.0f, 1.0f, 0.0f}}) {
    EXPECT_LT(error_of(GetParam(), outliers, 128, 128), tolerance) << outliers.name;
    EXPECT_LT(error_of(GetParam(), outliers, 200, 72), tolerance)
        << outliers.name << ", dimensions that fill no vector";
  }
}

INSTANTIATE_TEST_SUITE_P(Types, LongCaches,
                         testing::Values(DType::f32, DType::bf16, DType::f16, DType::i8, DType::f8e4m3),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace rootdk::test
