#include "cuda/hopper/shared/make_params.h"

#include <algorithm>
#include <cmath>

#include "core/strided.h"

namespace rootdk::cuda::hopper {
namespace {

constexpr double kLog2e = 1.4426950408889634;

DeviceTensor dense_tensor(const ConstTensorView& view, const AttentionShape& s) {
  if (!view.defined()) return {};
  const ConstTensorView wide = broadcast(view, {s.batch, s.heads, s.q_len, s.kv_len});
  return {const_cast<void*>(wide.data), wide.stride(0), wide.stride(1), wide.stride(2), wide.stride(3)};
}

template <class T>
DeviceVector<T> vector(const ConstTensorView& view) {
  if (!view.defined()) return {};
  return {view.as<T>(), view.stride(0)};
}

LogitTerms make_terms(const ForwardCall& call) {
  const AttentionParams& p = call.params;
  LogitTerms terms;
  if (p.logits.softcap > 0) terms.softcap = make_softcap(p.logits.softcap, call.logit_scale);
  terms.alibi_slopes = vector<float>(p.logits.alibi_slopes);
  if (p.logits.relative_table.defined()) {
    const ConstTensorView table =
        broadcast(p.logits.relative_table, {call.shape.heads, p.logits.relative_table.size(1)});
    terms.relative_table = {const_cast<void*>(table.data), 0, table.stride(0), 0, table.stride(1)};
    terms.relative_entries = static_cast<int>(table.size(1));
    terms.relative_zero = static_cast<int>(p.logits.relative_zero);
  }
  if (p.bias.defined()) {
    terms.bias_type = p.bias.dtype == DType::f32 ? BiasType::f32 : BiasType::element;
    terms.bias = dense_tensor(p.bias, call.shape);
  }
  terms.mask = dense_tensor(p.mask, call.shape);
  terms.dropout_threshold = call.dropout.threshold;
  terms.dropout_keep_scale = call.dropout.keep_scale;
  terms.dropout_seed = call.dropout.seed;
  return terms;
}

}  // namespace

DeviceTensor row_tensor(const ConstTensorView& view) {
  if (!view.defined()) return {};
  return {const_cast<void*>(view.data), view.stride(0), view.stride(1), view.stride(2), 0};
}

int window_limit(std::int64_t limit) {
  return limit < 0 ? kNoLimit : static_cast<int>(std::min<std::int64_t>(limit, kNoLimit));
}

// tanh(u) is u (c0 + c1 u^2 + c2 u^4) for |u| <= 0.25, with an error of 1e-7, and u (c0 + c1 u^2) for |u| <= 0.1, with
// an error of 1.7e-7. The coefficients interpolate tanh at Chebyshev points.
Softcap make_softcap(double cap, double scale) {
  constexpr double kSmall = 0.25, kTiny = 0.1;
  constexpr double kSmallTanh[3] = {0.9999996034626533, -0.33321896988991884, 0.12841433927140675};
  constexpr double kTinyTanh[2] = {0.999998340055528, -0.3320047058766649};
  const double inverse = scale / cap;
  Softcap softcap{.cap_log2 = static_cast<float>(cap * kLog2e), .inverse = static_cast<float>(inverse)};
  const auto coefficient = [&](double tanh, int power) {
    return static_cast<float>(cap * kLog2e * tanh * std::pow(inverse, power));
  };
  softcap.small = static_cast<float>(kSmall / std::abs(inverse));
  for (int i = 0; i < 3; ++i) softcap.odd[i] = coefficient(kSmallTanh[i], 2 * i + 1);
  softcap.tiny = static_cast<float>(kTiny / std::abs(inverse));
  for (int i = 0; i < 2; ++i) softcap.tiny_odd[i] = coefficient(kTinyTanh[i], 2 * i + 1);
  return softcap;
}

void cap_alike(ForwardParams& params) { params.terms.softcap.small = -1; }

ForwardParams make_params(const ForwardCall& call) {
  const AttentionShape& s = call.shape;
  const AttentionParams& p = call.params;
  ForwardParams params;
  params.out = row_tensor(call.out);
  params.q = row_tensor(call.q);
  params.k = row_tensor(call.k);
  params.v = row_tensor(call.v);
  params.row_values[kLse] = row_tensor(call.stats.lse);
  params.row_values[kMaxLogit] = row_tensor(call.stats.max_logit);
  params.row_values[kMaxWeight] = row_tensor(call.stats.max_weight);
  params.row_values[kEntropy] = row_tensor(call.stats.entropy);
  params.row_values[kSumP2] = row_tensor(call.stats.sum_p2);
  params.stats_stride = static_cast<int>(std::min<std::int64_t>(call.params.stats.stride, kNoLimit));
  params.sequences = static_cast<int>(s.batch);
  params.heads = static_cast<int>(s.heads);
  params.group = static_cast<int>(s.group());
  params.q_len = static_cast<int>(s.q_len);
  params.kv_len = static_cast<int>(s.kv_len);
  params.q_rows = static_cast<int>(call.q.size(2));
  params.kv_rows = static_cast<int>(call.k.size(2));
  params.head_dim = static_cast<int>(s.head_dim);
  params.value_dim = static_cast<int>(s.value_dim);
  params.left = window_limit(p.window_left);
  params.right = p.causal ? 0 : window_limit(p.window_right);
  params.kv_lengths = vector<std::int32_t>(p.kv_lengths);
  params.q_starts = vector<std::int32_t>(p.q_starts);
  params.kv_starts = vector<std::int32_t>(p.kv_starts);
  params.scale = static_cast<float>(call.logit_scale);
  params.scale_log2 = static_cast<float>(call.logit_scale * kLog2e);
  params.sinks = vector<float>(p.logits.sinks);
  params.terms = make_terms(call);
  return params;
}

}  // namespace rootdk::cuda::hopper
