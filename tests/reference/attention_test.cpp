// The edge cases that the reference specifies, each by hand values.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "conformance/cases.h"
#include "rootdk/dropout.h"

namespace rootdk::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
const Target kReference{.name = "reference"};

// Two keys with logits 0 and ln 3: weights 1/4 and 3/4.
AttentionCase two_keys() {
  AttentionCase c;
  c.name = "two keys";
  c.dtype = DType::f64;
  const double q[] = {1}, k[] = {0, std::log(3.0)}, v[] = {8, 4}, g[] = {1};
  c.q = DataTensor(tensor_of(DType::f64, {1, 1, 1, 1}, q), false);
  c.k = DataTensor(tensor_of(DType::f64, {1, 1, 2, 1}, k), false);
  c.v = DataTensor(tensor_of(DType::f64, {1, 1, 2, 1}, v), false);
  c.grad_out = DataTensor(tensor_of(DType::f64, {1, 1, 1, 1}, g), false);
  return c;
}

double value(const Results& results, const std::string& name, std::size_t n = 0) {
  return results.at(name).values<double>()[n];
}

TEST(ReferenceAttention, HandValues) {
  AttentionCase c = two_keys();
  c.pooled_rows = c.pooled_columns = 1;
  const Results r = run_forward(c, kReference);
  EXPECT_DOUBLE_EQ(value(r, "out"), 5.0);
  EXPECT_DOUBLE_EQ(value(r, "lse"), std::log(4.0));
  EXPECT_DOUBLE_EQ(value(r, "max_logit"), std::log(3.0));
  EXPECT_DOUBLE_EQ(value(r, "max_weight"), 0.75);
  EXPECT_DOUBLE_EQ(value(r, "sum_p2"), 0.0625 + 0.5625);
  EXPECT_DOUBLE_EQ(value(r, "entropy"), -0.25 * std::log(0.25) - 0.75 * std::log(0.75));
  EXPECT_DOUBLE_EQ(value(r, "column_mass", 1), 0.75);
  EXPECT_DOUBLE_EQ(value(r, "pooled_map"), 1.0);
  EXPECT_DOUBLE_EQ(value(r, "weights", 0), 0.25);
  const Results g = run_backward(c, r, kReference);
  EXPECT_DOUBLE_EQ(value(g, "grad_v", 0), 0.25);
  EXPECT_DOUBLE_EQ(value(g, "grad_k", 0), 0.25 * (8 - 5.0));
  EXPECT_DOUBLE_EQ(value(g, "grad_q"), 0.75 * (4 - 5.0) * std::log(3.0));
}

TEST(ReferenceAttention, SinkTakesWeight) {
  AttentionCase c = two_keys();
  const double sink[] = {std::log(4.0)};
  c.sinks = tensor_of(DType::f64, {1}, sink);
  const Results r = run_forward(c, kReference);
  EXPECT_DOUBLE_EQ(value(r, "out"), 2.5);
  EXPECT_DOUBLE_EQ(value(r, "lse"), std::log(8.0));
  EXPECT_DOUBLE_EQ(value(r, "max_weight"), 0.375);
  EXPECT_DOUBLE_EQ(value(run_backward(c, r, kReference), "grad_sinks"), -0.5 * 2.5);
}

// Mask of a row, bias of -inf everywhere, no visible key: all mean the same.
enum class Emptiness { mask, bias, length, no_keys };

class EmptyRow : public testing::TestWithParam<Emptiness> {};

AttentionCase empty_row(Emptiness how) {
  AttentionCase c = two_keys();
  const double infinite[] = {-kInfinity};
  switch (how) {
    case Emptiness::mask: c.mask = Tensor(DType::boolean, {1, 1, 1, 1}); break;
    case Emptiness::bias: c.bias = tensor_of(DType::f64, {1, 1, 1, 1}, infinite); break;
    case Emptiness::length: c.kv_lengths = i32_tensor({0}); break;
    case Emptiness::no_keys:
      c.k = DataTensor(Tensor(DType::f64, {1, 1, 0, 1}), false);
      c.v = DataTensor(Tensor(DType::f64, {1, 1, 0, 1}), false);
      break;
  }
  const double one[] = {1};
  c.grad_lse = tensor_of(DType::f64, {1, 1, 1}, one);
  c.grad_entropy = tensor_of(DType::f64, {1, 1, 1}, one);
  return c;
}

TEST_P(EmptyRow, GivesZerosAndNoGradient) {
  const AttentionCase c = empty_row(GetParam());
  const Results r = run_forward(c, kReference);
  EXPECT_EQ(value(r, "lse"), -kInfinity);
  EXPECT_EQ(value(r, "max_logit"), -kInfinity);
  for (const char* name : {"out", "max_weight", "entropy", "sum_p2"}) EXPECT_EQ(value(r, name), 0) << name;
  for (const auto& [name, gradient] : run_backward(c, r, kReference)) {
    for (double x : gradient.values<double>()) EXPECT_EQ(x, 0) << name;
  }
}

TEST_P(EmptyRow, WithASinkHasItsLse) {
  AttentionCase c = empty_row(GetParam());
  const double sink[] = {0.5};
  c.sinks = tensor_of(DType::f64, {1}, sink);
  const Results r = run_forward(c, kReference);
  EXPECT_DOUBLE_EQ(value(r, "lse"), 0.5);
  EXPECT_EQ(value(r, "max_logit"), -kInfinity);
  EXPECT_EQ(value(r, "out"), 0);
  EXPECT_EQ(value(r, "entropy"), 0);
  EXPECT_DOUBLE_EQ(value(run_backward(c, r, kReference), "grad_sinks"), 1.0);  // of lse
}

INSTANTIATE_TEST_SUITE_P(ReferenceAttention, EmptyRow,
                         testing::Values(Emptiness::mask, Emptiness::bias, Emptiness::length, Emptiness::no_keys));

TEST(ReferenceAttention, CausalRowsBeforeTheFirstKeyAreEmpty) {
  const Results r = run_forward(
      make_case({.name = "tall", .q_len = 5, .kv_len = 2, .scalars = {.causal = true}}, DType::f64), kReference);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(std::isinf(value(r, "lse", i)), i < 3) << i;
}

// A NaN shows in the rows that read it and nowhere else, forward and backward.
TEST(ReferenceAttention, NanStaysInItsRow) {
  AttentionCase c =
      make_case({.name = "nan", .heads = 1, .q_len = 6, .kv_len = 6, .scalars = {.causal = true}}, DType::f64);
  const std::int64_t dim = c.q.view().size(3);
  c.k.memory().values<double>()[static_cast<std::size_t>(4 * dim)] = kNaN;  // seen by rows 4 and 5
  c.v.memory().values<double>()[static_cast<std::size_t>(5 * dim)] = kNaN;  // seen by row 5
  const Results r = run_forward(c, kReference);
  const Results g = run_backward(c, r, kReference);
  for (std::int64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(std::isnan(value(r, "lse", static_cast<std::size_t>(i))), i >= 4) << i;
    for (std::int64_t d = 0; d < dim; ++d) {
      const auto n = static_cast<std::size_t>(i * dim + d);
      EXPECT_EQ(std::isnan(value(r, "out", n)), i >= 4) << i;
      EXPECT_EQ(std::isnan(value(g, "grad_q", n)), i >= 4) << i;
    }
    for (std::int64_t j = i + 1; j < 6; ++j) EXPECT_EQ(value(r, "weights", static_cast<std::size_t>(i * 6 + j)), 0);
  }
}

TEST(ReferenceAttention, ZeroVectorsScoreZeroUnderCosine) {
  AttentionCase c = two_keys();
  c.scalars.score = Score::cosine;
  c.q.memory().values<double>()[0] = 0;
  const Results r = run_forward(c, kReference);
  EXPECT_DOUBLE_EQ(value(r, "max_logit"), 0);
  EXPECT_DOUBLE_EQ(value(r, "out"), 6);
  const Results g = run_backward(c, r, kReference);
  EXPECT_EQ(value(g, "grad_q"), 0);
  EXPECT_EQ(value(g, "grad_k", 1), 0);
}

// The squares of these vectors are no doubles.
TEST(ReferenceAttention, CosineOfVectorsOfAnyLength) {
  for (const double size : {1e-300, 1e-170, 1.0, 1e170, 1e300}) {
    AttentionCase c = two_keys();
    c.scalars.score = Score::cosine;
    c.scalars.logits.scale = Scale::none();
    const double q[] = {3 * size, 4 * size}, k[] = {4 * size, 3 * size, 0, size};
    c.q = DataTensor(tensor_of(DType::f64, {1, 1, 1, 2}, q), false);
    c.k = DataTensor(tensor_of(DType::f64, {1, 1, 2, 2}, k), false);
    const Results r = run_forward(c, kReference);
    EXPECT_NEAR(value(r, "max_logit"), 0.96, 1e-15) << size;
    EXPECT_NEAR(value(r, "lse"), std::log(std::exp(0.96) + std::exp(0.8)), 1e-15) << size;
    const Results g = run_backward(c, r, kReference);
    const double p = std::exp(0.8 - value(r, "lse")), ds = p * (4 - value(r, "out"));  // of the second key
    // Its direction less its part along q: (0, 1) - 0.8 (0.6, 0.8), over |q|; the first key has the opposite weight.
    const double expected = ds * (-0.48 - (0.8 - 0.96 * 0.6)) / 5;
    EXPECT_NEAR(value(g, "grad_q") * size, expected, 1e-14) << size;
  }
}

TEST(ReferenceAttention, ZeroVectorBesideNanIsNan) {
  for (const double bad : {kNaN, kInfinity}) {
    AttentionCase c = two_keys();
    c.scalars.score = Score::cosine;
    c.q.memory().values<double>()[0] = 0;
    c.k.memory().values<double>()[1] = bad;
    EXPECT_TRUE(std::isnan(value(run_forward(c, kReference), "out"))) << bad;
  }
}

TEST(ReferenceAttention, DropoutFollowsTheRule) {
  AttentionCase c =
      make_case({.name = "dropout", .batch = 2, .heads = 2, .q_len = 4, .kv_len = 20, .head_dim = 1}, DType::f64);
  c.scalars = {.logits = {.scale = 0.0}, .dropout = 0.3, .seed = 11};  // equal weights of 1/20
  c.v = DataTensor(tensor_of(DType::f64, {2, 2, 20, 1}, std::vector<double>(80, 1.0)), false);
  const Results r = run_forward(c, kReference);
  const DropoutRule rule = DropoutRule::make(0.3, 11);
  for (std::uint32_t row = 0; row < 16; ++row) {
    int kept = 0;
    for (std::uint32_t j = 0; j < 20; ++j) kept += rule.keeps(row / 8, row / 4 % 2, row % 4, j);
    EXPECT_NEAR(value(r, "out", row), kept * static_cast<double>(rule.keep_scale) / 20, 1e-12) << row;
  }
}

TEST(ReferenceAttention, PooledMapSumsItsCells) {
  const AttentionCase c = make_case(
      {.name = "pool", .heads = 1, .q_len = 7, .kv_len = 10, .pooled_rows = 3, .pooled_columns = 4}, DType::f64);
  const Results r = run_forward(c, kReference);
  const std::int64_t rows[] = {0, 2, 4, 7}, columns[] = {0, 2, 5, 7, 10};
  for (std::size_t a = 0; a < 3; ++a) {
    for (std::size_t b = 0; b < 4; ++b) {
      double sum = 0;
      for (std::int64_t i = rows[a]; i < rows[a + 1]; ++i) {
        for (std::int64_t j = columns[b]; j < columns[b + 1]; ++j)
          sum += value(r, "weights", static_cast<std::size_t>(i * 10 + j));
      }
      EXPECT_NEAR(value(r, "pooled_map", a * 4 + b), sum / static_cast<double>(rows[a + 1] - rows[a]), 1e-14);
    }
  }
}

TEST(ReferenceAttention, PackedEqualsEachSequenceAlone) {
  CaseSpec spec{.name = "packed",
                .heads = 4,
                .kv_heads = 2,
                .q_len = 12,
                .kv_len = 15,
                .scalars = {.causal = true},
                .q_starts = {0, 5, 5, 12},
                .kv_starts = {0, 8, 9, 15},
                .alibi = true,
                .sinks = true};
  const AttentionCase packed = make_case(spec, DType::f64);
  const Results whole = run_forward(packed, kReference), grads = run_backward(packed, whole, kReference);
  for (std::size_t s : {0u, 2u}) {
    AttentionCase alone = packed.converted(DType::f64);
    alone.q_starts = Tensor();
    alone.kv_starts = Tensor();
    auto cut = [&](const DataTensor& x, const std::vector<std::int32_t>& starts) {
      return DataTensor(x.view().slice(2, starts[s], starts[s + 1]), false);
    };
    alone.q = cut(packed.q, spec.q_starts);
    alone.k = cut(packed.k, spec.kv_starts);
    alone.v = cut(packed.v, spec.kv_starts);
    alone.grad_out = cut(packed.grad_out, spec.q_starts);
    const Results one = run_forward(alone, kReference), one_grads = run_backward(alone, one, kReference);
    auto same = [&](const Results& all, const Results& part, const char* name,
                    const std::vector<std::int32_t>& starts) {
      const ConstTensorView cut_out = std::as_const(all.at(name)).view().slice(2, starts[s], starts[s + 1]);
      EXPECT_EQ(difference(part.at(name), cut_out).largest, 0) << name << " of sequence " << s;
    };
    for (const char* name : {"out", "lse", "entropy"}) same(whole, one, name, spec.q_starts);
    same(whole, one, "column_mass", spec.kv_starts);
    same(grads, one_grads, "grad_q", spec.q_starts);
    for (const char* name : {"grad_k", "grad_v"}) same(grads, one_grads, name, spec.kv_starts);
  }
}

}  // namespace
}  // namespace rootdk::test
