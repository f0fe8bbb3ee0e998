#include "distributed/forward_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/strided.h"

namespace rootdk::distributed {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

enum Statistic { kLse, kMaxLogit, kEntropy, kSquares, kStatistics };

void set(const TensorView& view, std::int64_t b, std::int64_t h, std::int64_t i, double value) {
  if (!view.defined()) return;
  if (view.dtype == DType::f64) {
    write<double, 3>(view)(b, h, i) = value;
  } else {
    write<float, 3>(view)(b, h, i) = static_cast<float>(value);
  }
}

double max_or_nan(double a, double b) { return std::isnan(a) || b < a ? a : b; }

}  // namespace

ForwardRows::ForwardRows(const Whole& whole, const Tiles& tiles, const RowsHere& rows, Executor& executor)
    : whole_(whole),
      tiles_(tiles),
      rows_(rows),
      executor_(executor),
      heads_(rows.q.size(1)),
      length_(rows.q.size(2)),
      needs_entropy_(rows.stats.entropy.defined()),
      needs_squares_(rows.stats.sum_p2.defined()),
      needs_max_(rows.stats.max_logit.defined() || rows.stats.max_weight.defined()) {
  if (tiles.carries_rows()) {
    carried_.emplace(whole, tiles, rows.q, rows.out, rows.stats, rows.first_head);
    return;
  }
  states_.assign(static_cast<std::size_t>(rows.q.size(0) * heads_ * length_),
                 RowState{.top = kMinusInfinity, .max_logit = kMinusInfinity});
  if (size_of(rows.out.dtype) == 2)
    sums_ = Tensor(DType::f32, {rows.q.size(0), heads_, length_, whole.shape.value_dim});
}

ForwardRows::RowState& ForwardRows::state(std::int64_t b, std::int64_t h, std::int64_t i) {
  return states_[static_cast<std::size_t>((b * heads_ + h) * length_ + i)];
}
const ForwardRows::RowState& ForwardRows::state(std::int64_t b, std::int64_t h, std::int64_t i) const {
  return states_[static_cast<std::size_t>((b * heads_ + h) * length_ + i)];
}

template <class T>
T* ForwardRows::sums(std::int64_t b, std::int64_t h, std::int64_t i) const {
  const TensorView view = sums_.defined() ? const_cast<Tensor&>(sums_).view() : rows_.out;
  return write<T, 4>(view).at(b, h, i, 0);
}

void ForwardRows::attend(const Run& keys, const ConstTensorView& k, const ConstTensorView& v,
                         std::int64_t first_kv_head) {
  std::vector<const LocalRun*> blocks;
  for (const LocalRun& block : rows_.blocks) {
    if (whole_.sees(block.run, keys)) blocks.push_back(&block);
  }
  const std::int64_t tasks = whole_.shape.batch * heads_ * static_cast<std::int64_t>(blocks.size());
  executor_.parallel_for(tasks, [&](std::int64_t task) {
    // The last rows of a causal sequence see the most keys: they go first.
    const LocalRun& block = *blocks[blocks.size() - 1 - static_cast<std::size_t>(task) % blocks.size()];
    const std::int64_t pair = task / static_cast<std::int64_t>(blocks.size());
    const TilePlace place{.batch = pair / heads_,
                          .head = rows_.first_head + pair % heads_,
                          .queries = block.run,
                          .keys = keys,
                          .local_query = block.local};
    const std::int64_t kv_head = place.head / whole_.shape.group() - first_kv_head;
    const ConstTensorView k_head = head_of(k, place.batch, kv_head), v_head = head_of(v, place.batch, kv_head);
    if (carried_) {
      carried_->attend(place, k_head, v_head);
    } else if (rows_.q.dtype == DType::f64) {
      attend_tile<double>(place, k_head, v_head);
    } else {
      attend_tile<float>(place, k_head, v_head);
    }
    if (rows_.maps) rows_.maps->attend(place, k_head, v_head);
  });
}

template <class T>
void ForwardRows::attend_tile(const TilePlace& place, const ConstTensorView& k, const ConstTensorView& v) {
  if (tiles_.visible(place) == 0) return;
  const std::int64_t rows = place.queries.rows(), width = whole_.shape.value_dim;
  const std::int64_t h = place.head - rows_.first_head;
  const auto memory = std::make_unique_for_overwrite<T[]>(static_cast<std::size_t>(rows * (width + kStatistics)));
  T* const statistics = memory.get() + rows * width;  // [kStatistics, rows]
  auto view = [&](Statistic which, bool needed) {
    return needed ? TensorView(statistics + which * rows, {1, 1, rows}) : TensorView();
  };
  AttentionStats stats;
  stats.lse = view(kLse, true);
  stats.max_logit = view(kMaxLogit, needs_max_);
  stats.entropy = view(kEntropy, needs_entropy_);
  stats.sum_p2 = view(kSquares, needs_squares_);
  const ConstTensorView q = head_of(rows_.q, place.batch, h).slice(2, place.local_query, place.local_query + rows);
  tiles_.forward(place, q, k, v, TensorView(memory.get(), {1, 1, rows, width}), stats);
  for (std::int64_t i = 0; i < rows; ++i) {
    const double of_row[kStatistics] = {
        statistics[kLse * rows + i], needs_max_ ? statistics[kMaxLogit * rows + i] : T{},
        needs_entropy_ ? statistics[kEntropy * rows + i] : T{}, needs_squares_ ? statistics[kSquares * rows + i] : T{}};
    const std::int64_t local = place.local_query + i;
    merge(state(place.batch, h, local), sums<T>(place.batch, h, local), memory.get() + i * width, of_row);
  }
}

// A NaN among the lse ends in every sum of the row.
template <class T>
void ForwardRows::merge(RowState& state, T* sum, const T* out, const double* statistics) const {
  const double lse = statistics[kLse];
  if (lse == kMinusInfinity) return;
  const std::int64_t width = whole_.shape.value_dim;
  const bool first = state.top == kMinusInfinity;
  double share = 1;
  if (first) {
    state.top = lse;
    std::copy_n(out, width, sum);
  } else if (lse <= state.top) {
    share = std::exp(lse - state.top);
    const T factor = static_cast<T>(share);
    for (std::int64_t d = 0; d < width; ++d) sum[d] += factor * out[d];
  } else {
    const double fewer = std::exp(state.top - lse);
    const T factor = static_cast<T>(fewer);
    for (std::int64_t d = 0; d < width; ++d) sum[d] = factor * sum[d] + out[d];
    state.top = lse;
    state.sum *= fewer;
    state.entropy *= fewer;
    state.squares *= fewer * fewer;
  }
  state.sum += share;
  state.entropy += share * (statistics[kEntropy] - lse);
  state.squares += share * share * statistics[kSquares];
  state.max_logit = max_or_nan(state.max_logit, statistics[kMaxLogit]);
}

template <class T>
void ForwardRows::finish_row(std::int64_t b, std::int64_t h, std::int64_t i, double sink) const {
  const RowState& row = state(b, h, i);
  const AttentionStats& stats = rows_.stats;
  const bool seen = row.top != kMinusInfinity;
  const double top = max_or_nan(row.top, sink);
  const double shift = seen ? std::exp(row.top - top) : 0.0;
  const double denominator = row.sum * shift + (sink == kMinusInfinity ? 0.0 : std::exp(sink - top));
  const double factor = seen ? shift / denominator : 0.0;
  const std::int64_t width = whole_.shape.value_dim;
  T* sum = sums<T>(b, h, i);
  for (std::int64_t d = 0; d < width; ++d) sum[d] = seen ? sum[d] * static_cast<T>(factor) : T{};
  if (sums_.defined()) {
    with_floating_type(rows_.out.dtype, [&](auto element) {
      using Element = decltype(element);
      Element* out = write<Element, 4>(rows_.out).at(b, h, i, 0);
      for (std::int64_t d = 0; d < width; ++d) out[d] = static_cast<Element>(sum[d]);
    });
  }
  const double lse = top == kMinusInfinity ? kMinusInfinity : top + std::log(denominator);
  set(stats.lse, b, h, i, lse);
  set(stats.max_logit, b, h, i, row.max_logit);
  set(stats.max_weight, b, h, i, seen ? std::min(1.0, std::exp(row.max_logit - lse)) : 0.0);
  // -sum p ln p over chunks c with the weight w_c = e_c factor: sum of w_c (H_c - lse_c + lse)
  const double entropy = factor * (row.entropy + lse * row.sum);
  set(stats.entropy, b, h, i, seen ? (entropy < 0 ? 0.0 : entropy) : 0.0);
  set(stats.sum_p2, b, h, i, seen ? row.squares * factor * factor : 0.0);
}

void ForwardRows::finish(const ConstTensorView& sinks) {
  if (carried_) {
    const auto blocks = static_cast<std::int64_t>(rows_.blocks.size());
    executor_.parallel_for(whole_.shape.batch * heads_ * blocks, [&](std::int64_t task) {
      const LocalRun& block = rows_.blocks[static_cast<std::size_t>(task % blocks)];
      const std::int64_t pair = task / blocks;
      carried_->finish({.batch = pair / heads_,
                        .head = rows_.first_head + pair % heads_,
                        .queries = block.run,
                        .keys = {.sequence = block.run.sequence},
                        .local_query = block.local});
    });
    return;
  }
  executor_.parallel_for(whole_.shape.batch * heads_, [&](std::int64_t task) {
    const std::int64_t b = task / heads_, h = task % heads_;
    double sink = kMinusInfinity;
    if (sinks.defined()) {
      const std::int64_t head = rows_.first_head + h;
      sink = sinks.dtype == DType::f64 ? read<double, 1>(sinks)(head) : read<float, 1>(sinks)(head);
    }
    for (std::int64_t i = 0; i < length_; ++i) {
      if (rows_.q.dtype == DType::f64) {
        finish_row<double>(b, h, i, sink);
      } else {
        finish_row<float>(b, h, i, sink);
      }
    }
  });
}

}  // namespace rootdk::distributed
