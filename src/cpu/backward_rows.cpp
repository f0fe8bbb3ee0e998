// Everything of a backward call but its tiles: packing, the constants of each row, storing gradients.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "cpu/backward_run.h"
#include "cpu/row_pointer.h"

namespace rootdk::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

}  // namespace

// Keys beyond those that a row may see keep a gradient of zero.
void BackwardRun::pack_keys(const Worker& worker, const BatchHead& batch_head, std::int64_t block,
                            const KeyBlock& to) const {
  const BackwardSizes& sizes = plan_.sizes;
  const BackwardGeometry& g = sizes.geometry;
  std::fill_n(to.grad_k, sizes.grad_k / sizeof(float), 0.0f);
  std::fill_n(to.grad_v, sizes.grad_v / sizeof(float), 0.0f);
  const std::int64_t first = block * g.key_block,
                     keys = std::min<std::int64_t>(g.key_block, batch_head.range.kv_visible - first);
  *to.k_not_finite = false;
  if (keys <= 0) return;
  const std::int64_t b = batch_head.range.batch_entry, key = batch_head.range.kv_begin + first;
  auto source = [&](const ConstTensorView& view, bool normalise) {
    return SourceRows{.data = row_pointer(view, b, batch_head.kv_head, key),
                      .row_stride = view.stride(2),
                      .kind = element_kind(view.dtype),
                      .rows = static_cast<int>(keys),
                      .dim = static_cast<int>(view.size(3)),
                      .normalise = normalise};
  };
  const SourceRows k = source(call_.saved.k, call_.params.score == Score::cosine);
  kernels_.pack_keys(k, to.k, worker.normalised);
  *to.k_not_finite =
      kernels_.pack_values(k, to.k_rows, static_cast<std::int64_t>(g.key_block) * g.panel, worker.normalised);
  kernels_.pack_keys(source(call_.saved.v, false), to.v, nullptr);
}

void BackwardRun::store_keys(const Worker& worker, const BatchHead& batch_head, std::int64_t block,
                             const KeyBlock& from) const {
  const std::int64_t size = plan_.sizes.geometry.key_block, first = block * size;
  const std::int64_t keys = std::min(size, batch_head.range.kv_len - first);
  const bool transposed = plan_.sizes.geometry.transposed_sums;
  if (keys <= 0) return;
  const std::int64_t b = batch_head.range.batch_entry, key = batch_head.range.kv_begin + first;
  auto store = [&](const TensorView& to, const float* sums, std::int64_t stride, double scale, const void* source) {
    if (!to.defined()) return;
    kernels_.store_rows({.from = sums,
                         .from_stride = transposed ? size : stride,
                         .transposed = transposed,
                         .rows = static_cast<int>(keys),
                         .dim = static_cast<int>(to.size(3)),
                         .scale = static_cast<float>(scale),
                         .to = row_pointer(to, b, batch_head.kv_head, key),
                         .to_stride = to.stride(2),
                         .kind = element_kind(to.dtype),
                         .source = source,
                         .source_stride = call_.saved.k.stride(2),
                         .source_kind = element_kind(call_.saved.k.dtype)},
                        worker.normalised);
  };
  const bool cosine = call_.params.score == Score::cosine;
  store(call_.gradients.k, from.grad_k, plan_.sizes.head_columns, call_.logit_scale,
        cosine ? row_pointer(call_.saved.k, b, batch_head.kv_head, key) : nullptr);
  store(call_.gradients.v, from.grad_v, plan_.sizes.value_columns, 1.0, nullptr);
}

BackwardRun::QueryBlock BackwardRun::prepare(Worker& worker, const BatchHead& batch_head, std::int64_t block,
                                             Sweep sweep) const {
  const std::int64_t first_row = block * batch_head.blocks.block_rows;
  QueryBlock result{.first_row = first_row, .queries = {}, .keys = {.begin = batch_head.range.kv_len, .end = 0}};
  BackwardQueries& queries = result.queries;
  queries.rows = worker.rows;
  queries.count = static_cast<int>(std::min(batch_head.blocks.block_rows, batch_head.blocks.rows - first_row));
  queries.grad_q = worker.grad_q;
  std::fill_n(worker.grad_q, queries.count * plan_.sizes.head_columns, 0.0f);
  std::fill_n(worker.bias_sums, kBackwardRows, 0.0f);
  std::fill_n(worker.additive, plan_.sizes.group * plan_.sizes.additive_columns, 0.0f);
  clear(worker.sums);
  float dots[kBackwardRows];
  dots_with_out(batch_head, first_row, queries.count, dots);
  for (int r = 0; r < queries.count; ++r) {
    const BackwardRow& row = worker.rows[r] = make_row(worker, batch_head, first_row + r, dots[r]);
    set_gradients(worker, batch_head, first_row + r, sweep, worker.rows[r]);
    if (row.query.key_begin >= row.query.key_end) continue;
    result.keys.begin = std::min(result.keys.begin, row.query.key_begin);
    result.keys.end = std::max(result.keys.end, row.query.key_end);
  }
  pack_queries(worker, batch_head, first_row, queries);
  return result;
}

// D = g_out . out of each row.
void BackwardRun::dots_with_out(const BatchHead& batch_head, std::int64_t first_row, int count, float* dots) const {
  const std::int64_t group = call_.shape.group(), b = batch_head.range.batch_entry;
  const void* grad_out[kBackwardRows];
  const void* out[kBackwardRows];
  for (int r = 0; r < count; ++r) {
    const std::int64_t row = first_row + r, head = batch_head.kv_head * group + row % group;
    grad_out[r] = row_pointer(call_.upstream.out, b, head, batch_head.range.q_begin + row / group);
    out[r] = row_pointer(call_.saved.out, b, head, batch_head.range.q_begin + row / group);
  }
  kernels_.dots({.a = grad_out,
                 .b = out,
                 .count = count,
                 .dim = static_cast<int>(call_.shape.value_dim),
                 .kind = element_kind(call_.saved.out.dtype),
                 .to = dots});
}

// All but the pointers to gradients. The sink's gradient needs no key and is added here.
BackwardRow BackwardRun::make_row(const Worker& worker, const BatchHead& batch_head, std::int64_t r, float dot) const {
  const std::int64_t group = call_.shape.group(), i = r / group, head = batch_head.kv_head * group + r % group;
  const std::int64_t b = batch_head.range.batch_entry, t = batch_head.range.q_begin + i;
  BackwardRow row;
  query_rows_.set(row.query, batch_head.range, batch_head.sequence, head, i);
  const float lse = lse_(b, head, t);
  if (lse == kMinusInfinity) {
    row.query.key_begin = row.query.key_end = 0;
    return row;
  }
  const float grad_lse = grad_lse_ ? grad_lse_(b, head, t) : 0.0f;
  const double sink = query_rows_.sink(head) * std::numbers::ln2, p_sink = std::exp(sink - lse);
  row.lse = static_cast<float>(lse * std::numbers::log2e);
  row.dot = dot - grad_lse;
  double entropy = 0;
  if (grad_entropy_) {
    row.grad_entropy = grad_entropy_(b, head, t);
    entropy = entropy_(b, head, t);
    row.entropy = static_cast<float>(entropy + p_sink);
  }
  if (call_.params.logits.sinks.defined() && p_sink != 0) {
    worker.sums.sinks[r % group] += p_sink * (row.grad_entropy * (1 - p_sink - entropy) - row.dot);
  }
  return row;
}

void BackwardRun::set_gradients(const Worker& worker, const BatchHead& batch_head, std::int64_t r, Sweep sweep,
                                BackwardRow& row) const {
  const std::int64_t group = call_.shape.group(), i = r / group, g = r % group, head = batch_head.kv_head * group + g;
  if (plan_.sizes.additive_columns) row.additive_v = additive_v_ + head * plan_.sizes.additive_columns;
  if (batch_head.range.kv_len == 0) return;
  const bool bias = call_.gradients.bias.defined();
  if (sweep.keys) {
    if (bias && !bias_is_summed_over_keys()) row.bias = bias_at(batch_head.sequence, head, i);
    if (call_.gradients.column_mass.defined()) {
      row.column_mass =
          &write<float, 3>(call_.gradients.column_mass)(batch_head.range.batch_entry, head, batch_head.range.kv_begin);
    }
  }
  if (sweep.queries) {
    if (bias && bias_is_summed_over_keys()) row.bias_sum = worker.bias_sums + (&row - worker.rows);
    if (call_.gradients.relative_table.defined())
      row.relative = worker.sums.relative + g * plan_.sizes.relative_entries;
    if (call_.gradients.alibi_slopes.defined()) row.alibi = worker.sums.alibi + g;
    if (call_.gradients.additive_v.defined()) row.additive = worker.additive + g * plan_.sizes.additive_columns;
  }
}

// The left operands first; the rows are made from them.
void BackwardRun::pack_queries(const Worker& worker, const BatchHead& batch_head, std::int64_t first_row,
                               BackwardQueries& queries) const {
  const BackwardSizes& sizes = plan_.sizes;
  const std::int64_t group = call_.shape.group(), element = sizes.geometry.element_bytes;
  auto pack = [&](const ConstTensorView& view, bool normalise, std::int64_t depth, std::byte* left, std::byte* rows) {
    SourceRows source{.data = nullptr,
                      .row_stride = view.stride(2),
                      .kind = element_kind(view.dtype),
                      .rows = group == 1 ? queries.count : 1,
                      .dim = static_cast<int>(view.size(3)),
                      .normalise = normalise};
    for (int r = 0; r < queries.count; r += source.rows) {
      const std::int64_t row = first_row + r;
      source.data = row_pointer(view, batch_head.range.batch_entry, batch_head.kv_head * group + row % group,
                                batch_head.range.q_begin + row / group);
      kernels_.pack_rows(source, left + r * depth * element, worker.normalised);
    }
    const SourceRows packed{.data = left,
                            .row_stride = depth,
                            .kind = element == 4 ? ElementKind::f32 : ElementKind::bf16,
                            .rows = queries.count,
                            .dim = static_cast<int>(view.size(3)),
                            .normalise = false};
    return kernels_.pack_query_rows(packed, rows);
  };
  queries.q_not_finite =
      pack(call_.saved.q, call_.params.score == Score::cosine, sizes.depth, worker.q_left, worker.q_rows);
  queries.grad_out_not_finite =
      pack(call_.upstream.out, false, sizes.value_depth, worker.grad_out_left, worker.grad_out_rows);
  queries.q_left = worker.q_left;
  queries.q_rows = worker.q_rows;
  queries.grad_out_left = worker.grad_out_left;
  queries.grad_out_rows = worker.grad_out_rows;
}

void BackwardRun::store_queries(const Worker& worker, const QueryBlock& block, const BatchHead& batch_head) const {
  const TensorView& to = call_.gradients.q;
  if (!to.defined()) return;
  const std::int64_t group = call_.shape.group(), b = batch_head.range.batch_entry;
  const bool cosine = call_.params.score == Score::cosine;
  const int rows = group == 1 ? block.queries.count : 1;
  for (int r = 0; r < block.queries.count; r += rows) {
    const std::int64_t row = block.first_row + r, head = batch_head.kv_head * group + row % group;
    const std::int64_t t = batch_head.range.q_begin + row / group;
    kernels_.store_rows({.from = worker.grad_q + r * plan_.sizes.head_columns,
                         .from_stride = plan_.sizes.head_columns,
                         .transposed = false,
                         .rows = rows,
                         .dim = static_cast<int>(call_.shape.head_dim),
                         .scale = static_cast<float>(call_.logit_scale),
                         .to = row_pointer(to, b, head, t),
                         .to_stride = to.stride(2),
                         .kind = element_kind(to.dtype),
                         .source = cosine ? row_pointer(call_.saved.q, b, head, t) : nullptr,
                         .source_stride = call_.saved.q.stride(2),
                         .source_kind = element_kind(call_.saved.q.dtype)},
                        worker.normalised);
  }
}

// Adds what a task summed over keys to the sums of its batch head, task by task in order.
void BackwardRun::add_task_sums(const Worker& worker, const QueryBlock& block, const BatchHead& batch_head) {
  const BackwardSizes& sizes = plan_.sizes;
  const ParameterSums& to = head_sums_[static_cast<std::size_t>(batch_head.buffer)];
  for (std::int64_t g = 0; g < sizes.group; ++g) {
    to.sinks[g] += worker.sums.sinks[g];
    to.alibi[g] += worker.sums.alibi[g];
  }
  for (std::int64_t e = 0; e < sizes.group * sizes.relative_entries; ++e) to.relative[e] += worker.sums.relative[e];
  for (std::int64_t d = 0; d < sizes.group * sizes.additive_columns; ++d) to.additive[d] += worker.additive[d];
  if (!call_.gradients.bias.defined() || !bias_is_summed_over_keys()) return;
  for (int r = 0; r < block.queries.count; ++r) {
    const std::int64_t row = block.first_row + r;
    *bias_at(batch_head.sequence, batch_head.kv_head * sizes.group + row % sizes.group, row / sizes.group) +=
        worker.bias_sums[r];
  }
}

void BackwardRun::clear(const ParameterSums& sums) const {
  std::fill_n(sums.sinks, plan_.sizes.group * (2 + plan_.sizes.relative_entries + plan_.sizes.additive_columns), 0.0);
}

}  // namespace rootdk::cpu
