#include "core/attention_call.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/attention_validator.h"
#include "core/check.h"
#include "core/fp8_call.h"
#include "core/strided.h"
#include "core/view_check.h"

namespace rootdk {

double Scale::factor(std::int64_t head_dim) const {
  switch (kind_) {
    case Kind::inverse_sqrt_head_dim: return 1.0 / std::sqrt(static_cast<double>(head_dim));
    case Kind::none: return 1.0;
    case Kind::inverse_head_dim: return 1.0 / static_cast<double>(head_dim);
    case Kind::value: return factor_;
  }
  return factor_;
}

namespace {

// Row statistics are indexed like q, column statistics like k: for packed sequences by the tensors' own sizes.
void check_stats(const AttentionValidator& check, const ConstTensorView& q, const ConstTensorView& k,
                 const StatsRequest& request, const AttentionStats& stats) {
  require(request.stride >= 1, check.operation(), ": stats.stride ", request.stride, " must be at least 1");
  const std::int64_t batch = q.size(0), heads = q.size(1), q_len = q.size(2), kv_len = k.size(2);
  const DType type = check.small();
  check.output("stats.lse", stats.lse, type, {batch, heads, q_len});
  check.output("stats.max_logit", stats.max_logit, type, {batch, heads, q_len});
  check.output("stats.max_weight", stats.max_weight, type, {batch, heads, q_len});
  check.output("stats.entropy", stats.entropy, type, {batch, heads, q_len});
  check.output("stats.sum_p2", stats.sum_p2, type, {batch, heads, q_len});
  check.output("stats.column_mass", stats.column_mass, type, {batch, heads, kv_len});
}

void check_pooled_map(const AttentionValidator& check, const AttentionShape& s, const AttentionStats& stats) {
  if (!stats.pooled_map.defined()) return;
  require(!s.packed, check.operation(), ": stats.pooled_map does not combine with packed sequences");
  const std::int64_t rows = stats.pooled_map.rank == 4 ? stats.pooled_map.size(2) : 0;
  const std::int64_t columns = stats.pooled_map.rank == 4 ? stats.pooled_map.size(3) : 0;
  check.output("stats.pooled_map", stats.pooled_map, check.small(), {s.batch, s.heads, rows, columns});
  require(rows >= 1 && columns >= 1 && rows <= std::max<std::int64_t>(1, s.q_len) &&
              columns <= std::max<std::int64_t>(1, s.kv_len),
          check.operation(), ": stats.pooled_map has ", rows, " x ", columns, " cells for a matrix of ", s.q_len, " x ",
          s.kv_len);
}

void check_weights(const AttentionValidator& check, const ConstTensorView& q, const ConstTensorView& k,
                   const StatsRequest& request, const AttentionStats& stats) {
  if (!stats.weights.defined()) {
    require(!request.weight_rows.defined(), check.operation(), ": stats.weight_rows is given but stats.weights is not");
    return;
  }
  std::int64_t rows = q.size(2);
  if (request.weight_rows.defined()) {
    rows = request.weight_rows.rank == 1 ? request.weight_rows.size(0) : 0;
    check.exact("stats.weight_rows", request.weight_rows, DType::i32, {rows});
    if (check.on_cpu()) {
      const auto row = read<std::int32_t, 1>(request.weight_rows);
      for (std::int64_t r = 0; r < rows; ++r) {
        require(row(r) >= 0 && row(r) < q.size(2), check.operation(), ": stats.weight_rows[", r, "] is ", row(r),
                ", not a row of ", q.size(2));
      }
    }
  }
  check.output("stats.weights", stats.weights, check.small(), {q.size(0), q.size(1), rows, k.size(2)});
}

// A gradient exists only for a tensor that took part.
void check_gradient(const AttentionValidator& check, std::string_view name, const TensorView& gradient,
                    const ConstTensorView& parameter) {
  if (!gradient.defined()) return;
  require(parameter.defined(), check.operation(), ": gradients.", name, " is asked for but ", name, " is not given");
  const std::string full_name = "gradients." + std::string(name);
  const NamedView tensor{check.operation(), full_name, gradient};
  if (gradient.rank != parameter.rank ||
      !std::equal(gradient.shape.begin(), gradient.shape.begin() + gradient.rank, parameter.shape.begin())) {
    fail(check.operation(), ": gradients.", name, " is ", describe(gradient), " but ", name, " is ",
         describe(parameter));
  }
  require_dtype(tensor, {parameter.dtype, check.small()});
  require_device(tensor, parameter.device, name);
  require_addressable(tensor);
  require_no_overlap(tensor);
}

// The gradient of q, k or v: a tensor like them, and none of those that the call reads.
void check_data_gradient(const AttentionValidator& check, std::string_view name, const TensorView& gradient,
                         const ConstTensorView& parameter, const AttentionSaved& saved,
                         const AttentionUpstream& upstream) {
  if (!gradient.defined()) return;
  check_gradient(check, name, gradient, parameter);
  const std::string full_name = "gradients." + std::string(name);
  check.data_tensor(full_name, gradient);
  const auto is_not = [&](std::string_view read_name, const ConstTensorView& read) {
    require_apart(check.operation(), full_name, gradient, read_name, read);
  };
  is_not("saved.q", saved.q);
  is_not("saved.k", saved.k);
  is_not("saved.v", saved.v);
  is_not("saved.out", saved.out);
  is_not("upstream.out", upstream.out);
}

}  // namespace

ForwardCall make_forward_call(ConstTensorView q, ConstTensorView k, ConstTensorView v, TensorView out,
                              const AttentionParams& params, const AttentionStats& stats, const Execution& execution) {
  const AttentionValidator check("attention", q);
  const AttentionShape shape = check.shape(q, k, v, params);
  check_compute(check, shape, q, k, params);
  check.output_data("out", out, {q.size(0), q.size(1), q.size(2), v.size(3)});
  require_apart(check.operation(), "out", out, "q", q);
  require_apart(check.operation(), "out", out, "k", k);
  require_apart(check.operation(), "out", out, "v", v);
  check.params(shape, params);
  check_stats(check, q, k, params.stats, stats);
  check_pooled_map(check, shape, stats);
  check_weights(check, q, k, params.stats, stats);
  return {.q = q,
          .k = k,
          .v = v,
          .out = out,
          .params = params,
          .stats = stats,
          .execution = execution,
          .shape = shape,
          .logit_scale = check.logit_scale(shape, params),
          .dropout = DropoutRule::make(params.dropout, params.seed)};
}

BackwardCall make_backward_call(const AttentionSaved& saved, const AttentionUpstream& upstream,
                                const AttentionGradients& gradients, const AttentionParams& params,
                                const Execution& execution) {
  const AttentionValidator check("attention_backward", saved.q);
  require(saved.q.dtype != DType::f8e4m3,
          "attention_backward: saved.q is f8e4m3: give q, k and v as they were before quantize_for_attention");
  const AttentionShape shape = check.shape(saved.q, saved.k, saved.v, params);
  check_compute(check, shape, saved.q, saved.k, params);
  check.params(shape, params);
  const std::int64_t batch = saved.q.size(0), heads = saved.q.size(1), q_len = saved.q.size(2);
  for (const auto& [name, view] : {std::pair{"saved.out", saved.out}, std::pair{"upstream.out", upstream.out}}) {
    check.data_tensor(name, view);
    require_shape({check.operation(), name, view}, {batch, heads, q_len, shape.value_dim});
  }
  require(saved.lse.defined(), "attention_backward: saved.lse is not given (ask the forward for stats.lse)");
  check.exact("saved.lse", saved.lse, check.small(), {batch, heads, q_len});
  if (saved.entropy.defined()) check.exact("saved.entropy", saved.entropy, check.small(), {batch, heads, q_len});
  if (upstream.lse.defined()) check.exact("upstream.lse", upstream.lse, check.small(), {batch, heads, q_len});
  if (upstream.entropy.defined()) {
    check.exact("upstream.entropy", upstream.entropy, check.small(), {batch, heads, q_len});
    require(saved.entropy.defined(),
            "attention_backward: upstream.entropy needs saved.entropy (ask the forward for stats.entropy)");
  }
  check_data_gradient(check, "q", gradients.q, saved.q, saved, upstream);
  check_data_gradient(check, "k", gradients.k, saved.k, saved, upstream);
  check_data_gradient(check, "v", gradients.v, saved.v, saved, upstream);
  check_gradient(check, "bias", gradients.bias, params.bias);
  check_gradient(check, "relative_table", gradients.relative_table, params.logits.relative_table);
  check_gradient(check, "alibi_slopes", gradients.alibi_slopes, params.logits.alibi_slopes);
  check_gradient(check, "sinks", gradients.sinks, params.logits.sinks);
  check_gradient(check, "additive_v", gradients.additive_v, params.additive_v);
  check.output("gradients.column_mass", gradients.column_mass, check.small(), {batch, heads, saved.k.size(2)});
  return {.saved = saved,
          .upstream = upstream,
          .gradients = gradients,
          .params = params,
          .execution = execution,
          .shape = shape,
          .logit_scale = check.logit_scale(shape, params),
          .dropout = DropoutRule::make(params.dropout, params.seed)};
}

SequenceRange sequence_range(const AttentionShape& shape, const AttentionParams& params, std::int64_t sequence) {
  SequenceRange range{
      .batch_entry = sequence, .q_len = shape.q_len, .kv_len = shape.kv_len, .kv_visible = shape.kv_len};
  if (shape.packed) {
    const auto q_start = read<std::int32_t, 1>(params.q_starts);
    const auto kv_start = read<std::int32_t, 1>(params.kv_starts);
    range.batch_entry = 0;
    range.q_begin = q_start(sequence);
    range.q_len = q_start(sequence + 1) - range.q_begin;
    range.kv_begin = kv_start(sequence);
    range.kv_len = range.kv_visible = kv_start(sequence + 1) - range.kv_begin;
  } else if (params.kv_lengths.defined()) {
    range.kv_visible = read<std::int32_t, 1>(params.kv_lengths)(sequence);
  }
  if (shape.origin.is_tile) range.shift = shape.origin.first_position - (range.kv_len - range.q_len);
  return range;
}

KeyRange key_range(const SequenceRange& range, const KeyWindow& window, std::int64_t i) {
  const std::int64_t position = range.position(i);
  KeyRange keys{.begin = 0, .end = range.kv_visible};
  if (window.causal) keys.end = std::min(keys.end, position + 1);
  // A window reaches past the ends of a sequence: compare differences, which cannot overflow.
  if (window.right >= 0 && window.right < range.kv_len - position) {
    keys.end = std::min(keys.end, position + window.right + 1);
  }
  // The queries of a tile may be far to the right of its keys.
  if (window.left >= 0 && window.left < position) keys.begin = std::min(position - window.left, range.kv_visible);
  keys.end = std::max(keys.end, keys.begin);
  return keys;
}

}  // namespace rootdk
