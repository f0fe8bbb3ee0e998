// Laws of the operation on random problems (rapidcheck): it finds and shrinks the sizes, the values follow from a seed.

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "conformance/cases.h"
#include "rootdk/dropout.h"

namespace rootdk::test {
namespace {

const Target kReference{.name = "reference"};
constexpr double kTight = 1e-12;

std::int64_t any(std::int64_t low, std::int64_t high) { return *rc::gen::inRange<std::int64_t>(low, high + 1); }

// Random sizes, masks and position terms; every row keeps a key at least where `full_rows`.
CaseSpec any_spec(bool full_rows = false) {
  CaseSpec spec;
  spec.name = "property " + std::to_string(any(0, 1000000));
  spec.batch = any(1, 2);
  spec.kv_heads = any(1, 2);
  spec.heads = spec.kv_heads * any(1, 3);
  spec.q_len = any(1, 9);
  spec.kv_len = any(1, 12);
  spec.head_dim = any(1, 6);
  spec.value_dim = any(1, 4);
  spec.alibi = any(0, 1);
  if (any(0, 1)) spec.scalars.logits.softcap = 2;
  if (any(0, 1)) spec.bias = {1, spec.heads, spec.q_len, spec.kv_len};
  if (full_rows) return spec;
  spec.scalars.causal = any(0, 1);
  spec.scalars.window_left = any(-1, 4);
  if (any(0, 1)) spec.mask = {spec.batch, 1, spec.q_len, spec.kv_len};
  spec.sinks = any(0, 1);
  return spec;
}

void require_close(const ConstTensorView& expected, const ConstTensorView& actual, double allowed = kTight) {
  const Difference d = difference(expected, actual);
  RC_LOG() << "element " << d.where << " is off by " << d.largest;
  RC_ASSERT(d.largest <= allowed * std::max(1.0, d.magnitude));
}

RC_GTEST_PROP(Property, RowsSumToOne, ()) {
  const CaseSpec spec = any_spec();
  const Results r = run_forward(make_case(spec, DType::f64), kReference);
  const std::vector<double> weights = doubles(r.at("weights")), lse = doubles(r.at("lse"));
  for (std::size_t row = 0; row < lse.size(); ++row) {
    const auto begin = weights.begin() + static_cast<std::ptrdiff_t>(row) * spec.kv_len;
    const double sum = std::accumulate(begin, begin + spec.kv_len, 0.0);
    RC_ASSERT(std::all_of(begin, begin + spec.kv_len, [](double p) { return p >= 0; }));
    // With a sink the keys have what it leaves; without a key they have nothing.
    const double missing = spec.sinks ? std::max(0.0, sum - 1) : std::isinf(lse[row]) ? sum : std::abs(sum - 1);
    RC_ASSERT(missing <= kTight);
  }
}

// Keys in another order, with their values: the same result. Queries in another order: the rows in that order.
RC_GTEST_PROP(Property, PermutationEquivariance, ()) {
  CaseSpec spec = any_spec(true);
  spec.alibi = false;
  spec.bias = {};
  const AttentionCase c = make_case(spec, DType::f64);
  std::vector<std::int64_t> keys(static_cast<std::size_t>(spec.kv_len)), rows(static_cast<std::size_t>(spec.q_len));
  std::iota(keys.begin(), keys.end(), 0);
  std::iota(rows.begin(), rows.end(), 0);
  std::rotate(keys.begin(), keys.begin() + any(0, spec.kv_len - 1), keys.end());
  std::reverse(keys.begin(), keys.begin() + any(0, spec.kv_len));
  std::reverse(rows.begin(), rows.begin() + any(0, spec.q_len));
  auto permuted = [](const ConstTensorView& x, const std::vector<std::int64_t>& order) {
    Tensor result(DType::f64, std::span(x.shape.data(), 4));
    const Tensor source = convert(x, DType::f64);
    const auto dim = static_cast<std::size_t>(x.size(3)), len = order.size();
    for (std::size_t n = 0; n < result.values<double>().size(); ++n) {
      const std::size_t d = n % dim, row = n / dim % len, head = n / dim / len;
      result.values<double>()[n] =
          source.values<double>()[(head * len + static_cast<std::size_t>(order[row])) * dim + d];
    }
    return result;
  };
  AttentionCase other = c.converted(DType::f64);
  other.q = DataTensor(permuted(c.q.view(), rows), false);
  other.k = DataTensor(permuted(c.k.view(), keys), false);
  other.v = DataTensor(permuted(c.v.view(), keys), false);
  const Results r = run_forward(c, kReference, Statistics::rows);
  require_close(permuted(r.at("out"), rows), run_forward(other, kReference, Statistics::rows).at("out"));
}

// A constant added to all logits of a row moves lse by that constant and nothing else.
RC_GTEST_PROP(Property, ShiftInvariance, ()) {
  CaseSpec spec = any_spec();
  spec.sinks = false;
  spec.bias = {1, 1, spec.q_len, 1};
  AttentionCase c = make_case(spec, DType::f64);
  std::fill(c.bias.values<double>().begin(), c.bias.values<double>().end(), 0.0);
  const Results before = run_forward(c, kReference);
  const double shift = static_cast<double>(any(-50, 50));
  std::fill(c.bias.values<double>().begin(), c.bias.values<double>().end(), shift);
  Results after = run_forward(c, kReference);
  for (double& lse : after.at("lse").values<double>()) lse -= shift;
  for (const char* name : {"out", "lse", "entropy", "sum_p2", "weights", "column_mass"}) {
    require_close(before.at(name), after.at(name), 1e-11);
  }
}

// Attention over two parts of the keys, merged, is attention over all of them.
RC_GTEST_PROP(Property, MergedPartsEqualTheWhole, ()) {
  CaseSpec spec = any_spec(true);
  spec.alibi = false;
  spec.bias = {};
  const AttentionCase c = make_case(spec, DType::f64);
  const Results whole = run_forward(c, kReference, Statistics::rows);
  const std::int64_t split = any(0, spec.kv_len);
  Tensor out(DType::f64, {2, spec.batch, spec.heads, spec.q_len, spec.value_dim});
  Tensor lse(DType::f64, {2, spec.batch, spec.heads, spec.q_len});
  for (std::int64_t part = 0; part < 2; ++part) {
    AttentionCase half = c.converted(DType::f64);
    const std::int64_t begin = part ? split : 0, end = part ? spec.kv_len : split;
    half.k = DataTensor(c.k.view().slice(2, begin, end), false);
    half.v = DataTensor(c.v.view().slice(2, begin, end), false);
    const Results r = run_forward(half, kReference, Statistics::rows);
    for (auto [name, parts] : {std::pair{"out", &out}, std::pair{"lse", &lse}}) {
      const std::vector<double> values = doubles(r.at(name));
      std::copy(values.begin(), values.end(),
                parts->values<double>().begin() + part * static_cast<std::int64_t>(values.size()));
    }
  }
  Tensor merged(DType::f64, {spec.batch, spec.heads, spec.q_len, spec.value_dim});
  Tensor merged_lse(DType::f64, {spec.batch, spec.heads, spec.q_len});
  merge_states(out, lse, merged, merged_lse);
  require_close(whole.at("out"), merged);
  require_close(whole.at("lse"), merged_lse);
}

// The gradient over two parts of the keys, each with the lse and out of the whole, is the gradient of the whole.
RC_GTEST_PROP(Property, SplitBackwardEqualsTheWhole, ()) {
  CaseSpec spec = any_spec(true);
  spec.alibi = false;
  spec.bias = {};
  spec.sinks = any(0, 1);
  spec.grad_lse = spec.grad_entropy = true;
  const AttentionCase c = make_case(spec, DType::f64);
  const Results forward = run_forward(c, kReference), whole = run_backward(c, forward, kReference);
  const std::int64_t split = any(0, spec.kv_len);
  std::vector<double> dq(doubles(whole.at("grad_q")).size());
  for (std::int64_t part = 0; part < 2; ++part) {
    AttentionCase half = c.converted(DType::f64);
    const std::int64_t begin = part ? split : 0, end = part ? spec.kv_len : split;
    half.k = DataTensor(c.k.view().slice(2, begin, end), false);
    half.v = DataTensor(c.v.view().slice(2, begin, end), false);
    const Results r = run_backward(half, forward, kReference);
    const std::vector<double> part_dq = doubles(r.at("grad_q"));
    for (std::size_t n = 0; n < dq.size(); ++n) dq[n] += part_dq[n];
    for (const char* name : {"grad_k", "grad_v"}) {
      require_close(std::as_const(whole.at(name)).view().slice(2, begin, end), r.at(name));
    }
  }
  require_close(whole.at("grad_q"), tensor_of(DType::f64, {spec.batch, spec.heads, spec.q_len, spec.head_dim}, dq));
}

RC_GTEST_PROP(Property, GroupedHeadsEqualRepeatedHeads, ()) {
  const CaseSpec spec = any_spec();
  const AttentionCase c = make_case(spec, DType::f64);
  const std::int64_t group = spec.heads / spec.kv_heads;
  auto repeated = [&](const DataTensor& x) {
    Tensor result(DType::f64, {spec.batch, spec.heads, spec.kv_len, x.view().size(3)});
    const auto block = static_cast<std::size_t>(spec.kv_len * x.view().size(3));
    const std::vector<double> source = doubles(x.view());
    for (std::int64_t h = 0; h < spec.batch * spec.heads; ++h) {
      const std::int64_t from = h / spec.heads * spec.kv_heads + h % spec.heads / group;
      std::copy_n(source.begin() + from * static_cast<std::int64_t>(block), block,
                  result.values<double>().begin() + h * static_cast<std::int64_t>(block));
    }
    return DataTensor(result, false);
  };
  AttentionCase wide = c.converted(DType::f64);
  wide.k = repeated(c.k);
  wide.v = repeated(c.v);
  const Results grouped = run_forward(c, kReference), plain = run_forward(wide, kReference);
  for (const auto& [name, tensor] : grouped) require_close(tensor, plain.at(name));
  // The gradient of a shared key is the sum over the heads that share it.
  const Results grouped_gradients = run_backward(c, grouped, kReference);
  const Results plain_gradients = run_backward(wide, plain, kReference);
  require_close(grouped_gradients.at("grad_q"), plain_gradients.at("grad_q"));
  const std::vector<double> each = doubles(plain_gradients.at("grad_k"));
  std::vector<double> sum(doubles(grouped_gradients.at("grad_k")).size());
  const std::int64_t block = spec.kv_len * spec.head_dim;
  for (std::size_t n = 0; n < each.size(); ++n) {
    const std::int64_t h = static_cast<std::int64_t>(n) / block;
    const std::int64_t to = h / spec.heads * spec.kv_heads + h % spec.heads / group;
    sum[static_cast<std::size_t>(to * block + static_cast<std::int64_t>(n) % block)] += each[n];
  }
  require_close(grouped_gradients.at("grad_k"),
                tensor_of(DType::f64, {spec.batch, spec.kv_heads, spec.kv_len, spec.head_dim}, sum));
}

RC_GTEST_PROP(Property, WideWindowEqualsNone, ()) {
  CaseSpec spec = any_spec();
  spec.scalars.window_left = spec.scalars.window_right = -1;
  AttentionCase c = make_case(spec, DType::f64);
  const Results open = run_forward(c, kReference);
  const std::int64_t wide = any(0, 1) ? std::max(spec.q_len, spec.kv_len) : INT64_MAX;
  c.scalars.window_left = c.scalars.window_right = wide;
  const Results windowed = run_forward(c, kReference);
  for (const auto& [name, tensor] : open) RC_ASSERT(difference(tensor, windowed.at(name)).largest == 0);
}

// Causal is a window that ends at the query.
RC_GTEST_PROP(Property, CausalEqualsWindowRightZero, ()) {
  AttentionCase c = make_case(any_spec(), DType::f64);
  c.scalars.causal = true;
  const Results causal = run_forward(c, kReference);
  c.scalars.causal = false;
  c.scalars.window_right = 0;
  const Results windowed = run_forward(c, kReference);
  for (const auto& [name, tensor] : causal) RC_ASSERT(difference(tensor, windowed.at(name)).largest == 0);
}

// Averaged over seeds, dropout changes nothing.
TEST(Property, DropoutExpectation) {
  CaseSpec spec{.name = "dropout expectation", .heads = 1, .q_len = 4, .kv_len = 16, .head_dim = 4};
  AttentionCase c = make_case(spec, DType::f64);
  const std::vector<double> plain = doubles(run_forward(c, kReference, Statistics::rows).at("out"));
  std::vector<double> mean(plain.size());
  constexpr int kSeeds = 4000;
  c.scalars.dropout = 0.25;
  for (int seed = 0; seed < kSeeds; ++seed) {
    c.scalars.seed = static_cast<std::uint64_t>(seed);
    const std::vector<double> out = doubles(run_forward(c, kReference, Statistics::none).at("out"));
    for (std::size_t n = 0; n < out.size(); ++n) mean[n] += out[n] / kSeeds;
  }
  // A term p v has variance (p v)^2 / 3; five deviations of the mean of 4000 draws of weights below 1.
  for (std::size_t n = 0; n < mean.size(); ++n) EXPECT_NEAR(mean[n], plain[n], 5 * 2.0 / std::sqrt(3.0 * kSeeds));
}

}  // namespace
}  // namespace rootdk::test
