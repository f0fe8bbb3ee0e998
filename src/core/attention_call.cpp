#include "core/attention_call.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/check.h"
#include "core/logit_check.h"
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

// The checks of one call, forward or backward: they share the operation's name, the device and the element type.
class Validator {
 public:
  Validator(std::string_view operation, const ConstTensorView& q) : operation_(operation) {
    const NamedView tensor{operation_, "q", q};
    require_given(tensor);
    require_rank(tensor, 4);
    require_dtype(tensor, {DType::f32, DType::bf16, DType::f16, DType::f64});
    device_ = q.device;
    dtype_ = q.dtype;
    // Small tensors and statistics: f32, or f64 beside f64.
    small_ = dtype_ == DType::f64 ? DType::f64 : DType::f32;
  }

  AttentionShape shape(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                       const AttentionParams& params) const {
    data_tensor("q", q);
    data_tensor("k", k);
    data_tensor("v", v);
    AttentionShape s{.batch = q.size(0),
                     .heads = q.size(1),
                     .kv_heads = k.size(1),
                     .q_len = q.size(2),
                     .kv_len = k.size(2),
                     .head_dim = q.size(3),
                     .value_dim = v.size(3)};
    require(s.head_dim >= 1 && s.value_dim >= 1, operation_, ": head_dim ", s.head_dim, " and value_dim ", s.value_dim,
            " must be at least 1");
    require(k.size(3) == s.head_dim, operation_, ": head_dim of q is ", s.head_dim, " but of k ", k.size(3));
    require(k.size(0) == s.batch && v.size(0) == s.batch, operation_, ": batch of q is ", s.batch, " but of k ",
            k.size(0), " and of v ", v.size(0));
    require(v.size(1) == s.kv_heads, operation_, ": kv_heads of k is ", s.kv_heads, " but of v ", v.size(1));
    require(v.size(2) == s.kv_len, operation_, ": kv_len of k is ", s.kv_len, " but of v ", v.size(2));
    require(s.heads == 0 ? s.kv_heads == 0 : (s.kv_heads > 0 && s.heads % s.kv_heads == 0), operation_, ": heads ",
            s.heads, " is not a multiple of kv_heads ", s.kv_heads);
    // 32-bit row and key numbers are part of the dropout definition, and of every kernel.
    require(s.q_len < (std::int64_t{1} << 31) && s.kv_len < (std::int64_t{1} << 31), operation_, ": q_len ", s.q_len,
            " and kv_len ", s.kv_len, " must be below 2^31");
    if (params.q_starts.defined() || params.kv_starts.defined()) pack(s, params);
    return s;
  }

  void scalars(const AttentionParams& p) const {
    require(p.score == Score::dot || p.score == Score::cosine || p.score == Score::additive, operation_, ": score ",
            static_cast<int>(p.score), " is none of dot (0), cosine (1), additive (2)");
    require(p.window_left >= -1, operation_, ": window_left ", p.window_left, " must be at least 0, or -1 for none");
    require(p.window_right >= -1, operation_, ": window_right ", p.window_right, " must be at least 0, or -1 for none");
    require(p.dropout >= 0 && p.dropout < 1, operation_, ": dropout ", p.dropout, " is not in [0, 1)");
  }

  double logit_scale(const AttentionShape& s, const AttentionParams& p) const {
    return checked_logit_scale(operation_, p.logits, s.head_dim, dtype_);
  }

  void params(const AttentionShape& s, const AttentionParams& p) const {
    scalars(p);
    if (p.kv_lengths.defined()) lengths(s, p.kv_lengths);
    if (p.mask.defined()) input("mask", p.mask, {DType::boolean}, {s.batch, s.heads, s.q_len, s.kv_len});
    if (p.block_mask.defined()) block_mask(s, p);
    if (p.bias.defined()) {
      input("bias", p.bias, {small_, dtype_}, {s.batch, s.heads, s.q_len, s.kv_len});
    }
    check_logit_tensors({operation_, small_, device_, "q"}, p.logits, s.heads);
    if (p.score == Score::additive) {
      require(p.additive_v.defined(), operation_, ": the additive score needs additive_v [heads, head_dim]");
    }
    if (p.additive_v.defined()) {
      require(p.score == Score::additive, operation_, ": additive_v is given but the score is not additive");
      exact("additive_v", p.additive_v, small_, {s.heads, s.head_dim});
    }
  }

  // q, k, v and their gradients: the element type of q, rank 4, contiguous last dimension.
  void data_tensor(std::string_view name, const ConstTensorView& view) const {
    const NamedView tensor{operation_, name, view};
    require_given(tensor);
    require_rank(tensor, 4);
    require(view.dtype == dtype_, operation_, ": ", name, " is ", name_of(view.dtype), " but q is ", name_of(dtype_));
    require_device(tensor, device_, "q");
    require_addressable(tensor);
    require_contiguous_last(tensor);
  }

  void exact(std::string_view name, const ConstTensorView& view, DType dtype,
             std::initializer_list<std::int64_t> shape) const {
    const NamedView tensor{operation_, name, view};
    require_dtype(tensor, {dtype});
    require_shape(tensor, shape);
    require_device(tensor, device_, "q");
    require_addressable(tensor);
  }

  // An output that is optional: undefined is fine.
  void output(std::string_view name, const TensorView& view, DType dtype,
              std::initializer_list<std::int64_t> shape) const {
    if (!view.defined()) return;
    exact(name, view, dtype, shape);
    require_no_overlap({operation_, name, view});
  }

  void output_data(std::string_view name, const TensorView& view, std::initializer_list<std::int64_t> shape) const {
    data_tensor(name, view);
    require_shape({operation_, name, view}, shape);
    require_no_overlap({operation_, name, view});
  }

  DType small() const { return small_; }
  DType dtype() const { return dtype_; }
  bool on_cpu() const { return device_.kind == DeviceKind::cpu; }
  std::string_view operation() const { return operation_; }

 private:
  void input(std::string_view name, const ConstTensorView& view, std::initializer_list<DType> types,
             std::initializer_list<std::int64_t> shape) const {
    const NamedView tensor{operation_, name, view};
    require_dtype(tensor, types);
    require_broadcastable(tensor, shape);
    require_device(tensor, device_, "q");
    require_addressable(tensor);
  }

  void lengths(const AttentionShape& s, const ConstTensorView& view) const {
    exact("kv_lengths", view, DType::i32, {s.batch});
    if (!on_cpu()) return;
    const auto length = read<std::int32_t, 1>(view);
    for (std::int64_t b = 0; b < s.batch; ++b) {
      require(length(b) >= 0 && length(b) <= s.kv_len, operation_, ": kv_lengths[", b, "] is ", length(b),
              ", not in 0 to kv_len ", s.kv_len);
    }
  }

  void block_mask(const AttentionShape& s, const AttentionParams& p) const {
    require(p.block_q >= 1 && p.block_kv >= 1, operation_,
            ": block_mask needs block_q and block_kv of at least 1, got ", p.block_q, " and ", p.block_kv);
    input("block_mask", p.block_mask, {DType::boolean},
          {s.batch, s.heads, blocks_over(s.q_len, p.block_q), blocks_over(s.kv_len, p.block_kv)});
  }

  void pack(AttentionShape& s, const AttentionParams& p) const {
    require(p.q_starts.defined() && p.kv_starts.defined(), operation_,
            ": packed sequences need both q_starts and kv_starts");
    require(s.batch == 1, operation_, ": packed sequences need batch 1, got ", s.batch);
    require(!p.kv_lengths.defined() && !p.mask.defined() && !p.block_mask.defined() && !p.bias.defined(), operation_,
            ": packed sequences do not combine with kv_lengths, mask, block_mask or bias");
    const std::int64_t entries = p.q_starts.rank == 1 ? p.q_starts.size(0) : 0;
    if (entries < 1) fail(operation_, ": q_starts is ", describe(p.q_starts), ", expected i32 [sequences + 1]");
    exact("q_starts", p.q_starts, DType::i32, {entries});
    exact("kv_starts", p.kv_starts, DType::i32, {entries});
    require(p.max_q_len >= 0 && p.max_kv_len >= 0, operation_, ": max_q_len ", p.max_q_len, " and max_kv_len ",
            p.max_kv_len, " must not be negative");
    s.packed = true;
    s.batch = entries - 1;
    if (on_cpu()) {
      s.q_len = check_starts("q_starts", p.q_starts, s.q_len);
      s.kv_len = check_starts("kv_starts", p.kv_starts, s.kv_len);
    } else {
      if (p.max_q_len > 0) s.q_len = std::min(s.q_len, p.max_q_len);
      if (p.max_kv_len > 0) s.kv_len = std::min(s.kv_len, p.max_kv_len);
    }
  }

  // Returns the longest sequence.
  std::int64_t check_starts(std::string_view name, const ConstTensorView& view, std::int64_t total) const {
    const auto start = read<std::int32_t, 1>(view);
    const std::int64_t sequences = view.size(0) - 1;
    require(start(0) == 0, operation_, ": ", name, "[0] is ", start(0), ", expected 0");
    require(start(sequences) == total, operation_, ": ", name, "[", sequences, "] is ", start(sequences),
            ", expected the number of rows ", total);
    std::int64_t longest = 0;
    for (std::int64_t s = 0; s < sequences; ++s) {
      require(start(s) <= start(s + 1), operation_, ": ", name, " decreases from ", start(s), " to ", start(s + 1),
              " at ", s + 1);
      longest = std::max<std::int64_t>(longest, start(s + 1) - start(s));
    }
    return longest;
  }

  std::string_view operation_;
  Device device_;
  DType dtype_ = DType::f32, small_ = DType::f32;
};

// Row statistics are indexed like q, column statistics like k: for packed sequences by the tensors' own sizes.
void check_stats(const Validator& check, const ConstTensorView& q, const ConstTensorView& k,
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

void check_pooled_map(const Validator& check, const AttentionShape& s, const AttentionStats& stats) {
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

void check_weights(const Validator& check, const ConstTensorView& q, const ConstTensorView& k,
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
void check_gradient(const Validator& check, std::string_view name, const TensorView& gradient,
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
void check_data_gradient(const Validator& check, std::string_view name, const TensorView& gradient,
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
  const Validator check("attention", q);
  const AttentionShape shape = check.shape(q, k, v, params);
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
  const Validator check("attention_backward", saved.q);
  const AttentionShape shape = check.shape(saved.q, saved.k, saved.v, params);
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
