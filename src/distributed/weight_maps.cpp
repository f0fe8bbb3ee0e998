#include "distributed/weight_maps.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/strided.h"
#include "distributed/sum_over_ranks.h"

namespace rootdk::distributed {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// The cell that holds an index: the last that begins at or before it.
std::int64_t cell_of(std::int64_t index, std::int64_t length, std::int64_t cells) {
  return ((index + 1) * cells - 1) / length;
}

double value_at(const ConstTensorView& view, std::int64_t b, std::int64_t h, std::int64_t i) {
  return view.dtype == DType::f64 ? read<double, 3>(view)(b, h, i) : read<float, 3>(view)(b, h, i);
}

void clear(const TensorView& view) {
  with_floating_type(view.dtype, [&](auto element) {
    using Element = decltype(element);
    const auto to = write<Element, 4>(view);
    for (std::int64_t b = 0; b < view.size(0); ++b)
      for (std::int64_t h = 0; h < view.size(1); ++h)
        for (std::int64_t i = 0; i < view.size(2); ++i)
          for (std::int64_t j = 0; j < view.size(3); ++j) to(b, h, i, j) = Element{};
  });
}

}  // namespace

WeightMaps::WeightMaps(const Whole& whole, const Tiles& tiles, const ConstTensorView& q, std::int64_t first_head,
                       const AttentionStats& stats, const ConstTensorView& weight_rows)
    : whole_(whole),
      tiles_(tiles),
      q_(q),
      first_head_(first_head),
      heads_(q.size(1)),
      rows_(q.size(2)),
      map_(stats.pooled_map),
      weights_(stats.weights),
      every_row_(!weight_rows.defined()) {
  const std::int64_t batch = q.size(0);
  if (map_.defined()) {
    tops_.assign(static_cast<std::size_t>(batch * heads_ * rows_), kMinusInfinity);
    cells_ = Tensor(map_.dtype, {batch, heads_, rows_, map_.size(3)});
    sums_.resize(static_cast<std::size_t>(batch * whole.shape.heads * map_.size(2) * map_.size(3)));
  }
  if (!weights_.defined()) return;
  clear(weights_);
  for (std::int64_t index = 0; index < weights_.size(2); ++index) {
    chosen_.push_back({.row = every_row_ ? index : read<std::int32_t, 1>(weight_rows)(index), .index = index});
  }
  std::stable_sort(chosen_.begin(), chosen_.end(), [](const Chosen& a, const Chosen& b) { return a.row < b.row; });
  for (const Sequence& sequence : whole.sequences) {
    chunks_ = std::max(chunks_, (sequence.kv_len + whole.key_chunk - 1) / whole.key_chunk);
  }
  lse_.assign(static_cast<std::size_t>(batch * heads_ * weights_.size(2) * chunks_), kMinusInfinity);
}

double& WeightMaps::chunk_lse(std::int64_t b, std::int64_t h, std::int64_t index, std::int64_t chunk) {
  return lse_[static_cast<std::size_t>(((b * heads_ + h) * weights_.size(2) + index) * chunks_ + chunk)];
}

void WeightMaps::attend(const TilePlace& place, const ConstTensorView& k, const ConstTensorView& v) {
  auto tile = [&](const TilePlace& part) {
    if (tiles_.visible(part) == 0) return;
    if (q_.dtype == DType::f64) {
      attend_tile<double>(part, k, v);
    } else {
      attend_tile<float>(part, k, v);
    }
  };
  if (map_.defined() || every_row_) return tile(place);
  const std::int64_t begin = place.local_query, end = begin + place.queries.rows();
  std::int64_t last = -1;
  for (const Chosen& chosen : chosen_) {
    if (chosen.row < begin || chosen.row >= end || chosen.row == last) continue;
    last = chosen.row;
    TilePlace row = place;
    row.local_query = chosen.row;
    row.queries.begin = place.queries.begin + (chosen.row - begin);
    row.queries.end = row.queries.begin + 1;
    tile(row);
  }
}

template <class T>
void WeightMaps::attend_tile(const TilePlace& place, const ConstTensorView& k, const ConstTensorView& v) {
  const std::int64_t rows = place.queries.rows(), keys = tiles_.visible(place), width = whole_.shape.value_dim;
  const auto memory = std::make_unique_for_overwrite<T[]>(static_cast<std::size_t>(rows * (width + 1 + keys)));
  T *const lse = memory.get() + rows * width, *const weights = lse + rows;
  AttentionStats stats;
  stats.lse = TensorView(lse, {1, 1, rows});
  stats.weights = TensorView(weights, {1, 1, rows, keys});
  const ConstTensorView q =
      head_of(q_, place.batch, place.head - first_head_).slice(2, place.local_query, place.local_query + rows);
  tiles_.forward(place, q, k, v, TensorView(memory.get(), {1, 1, rows, width}), stats);
  for (std::int64_t i = 0; i < rows; ++i) {
    if (lse[i] == kMinusInfinity) continue;
    if (map_.defined()) pool(place, place.local_query + i, lse[i], weights + i * keys, keys);
    if (weights_.defined()) keep(place, place.local_query + i, lse[i], weights + i * keys, keys);
  }
}

// Into the cells of the row, which are relative to exp(top).
template <class T>
void WeightMaps::pool(const TilePlace& place, std::int64_t row, double lse, const T* weights, std::int64_t keys) {
  const std::int64_t h = place.head - first_head_, columns = map_.size(3);
  double& top = tops_[at(place.batch, h, row)];
  T* cells = write<T, 4>(cells_.view()).at(place.batch, h, row, 0);
  if (!(lse <= top)) {
    const T fewer = top == kMinusInfinity ? T{} : static_cast<T>(std::exp(top - lse));
    for (std::int64_t c = 0; c < columns; ++c) cells[c] *= fewer;
    top = lse;
  }
  const double share = std::exp(lse - top);
  for (std::int64_t j = 0; j < keys;) {
    const std::int64_t cell = cell_of(place.keys.begin + j, whole_.shape.kv_len, columns);
    const std::int64_t end = std::min(keys, (cell + 1) * whole_.shape.kv_len / columns - place.keys.begin);
    double sum = 0;
    for (; j < end; ++j) sum += weights[j];
    cells[cell] += static_cast<T>(share * sum);
  }
}

template <class T>
void WeightMaps::keep(const TilePlace& place, std::int64_t row, double lse, const T* weights, std::int64_t keys) {
  const std::int64_t h = place.head - first_head_;
  const std::int64_t column = whole_.sequence_of(place.keys).kv_begin + place.keys.begin;
  const auto first = std::lower_bound(chosen_.begin(), chosen_.end(), row,
                                      [](const Chosen& chosen, std::int64_t other) { return chosen.row < other; });
  const auto to = write<T, 4>(weights_);
  for (auto chosen = first; chosen != chosen_.end() && chosen->row == row; ++chosen) {
    chunk_lse(place.batch, h, chosen->index, place.keys.begin / whole_.key_chunk) = lse;
    for (std::int64_t j = 0; j < keys; ++j) to(place.batch, h, chosen->index, column + j) = weights[j];
  }
}

void WeightMaps::finish(const std::vector<LocalRun>& blocks, const ConstTensorView& lse, Executor& executor) {
  executor.parallel_for(q_.size(0) * heads_, [&](std::int64_t task) {
    const std::int64_t b = task / heads_, h = task % heads_;
    for (const LocalRun& block : blocks) {
      for (std::int64_t i = 0; i < block.run.rows(); ++i) {
        const std::int64_t row = block.local + i;
        const double total = value_at(lse, b, h, row);
        if (map_.defined()) {
          const std::int64_t query = block.run.begin + i;
          q_.dtype == DType::f64 ? finish_pooled<double>(b, h, row, query, total)
                                 : finish_pooled<float>(b, h, row, query, total);
        }
        const auto first = std::lower_bound(chosen_.begin(), chosen_.end(), row,
                                            [](const Chosen& x, std::int64_t other) { return x.row < other; });
        for (auto chosen = first; chosen != chosen_.end() && chosen->row == row; ++chosen) {
          const Sequence& sequence = whole_.sequence_of(block.run);
          q_.dtype == DType::f64 ? finish_weights<double>(b, h, *chosen, sequence, total)
                                 : finish_weights<float>(b, h, *chosen, sequence, total);
        }
      }
    }
  });
}

template <class T>
void WeightMaps::finish_pooled(std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t query, double lse) {
  const double top = tops_[at(b, h, row)];
  if (top == kMinusInfinity) return;
  const std::int64_t columns = map_.size(3), map_row = cell_of(query, whole_.shape.q_len, map_.size(2));
  const T* cells = read<T, 4>(cells_.view()).at(b, h, row, 0);
  const double factor = std::exp(top - lse);
  UnitSum* sums = sums_.data() + ((b * whole_.shape.heads + first_head_ + h) * map_.size(2) + map_row) * columns;
  for (std::int64_t c = 0; c < columns; ++c) sums[c].add(cells[c] * factor);
}

template <class T>
void WeightMaps::finish_weights(std::int64_t b, std::int64_t h, const Chosen& chosen, const Sequence& sequence,
                                double lse) {
  const auto weights = write<T, 4>(weights_);
  for (std::int64_t chunk = 0; chunk < chunks_; ++chunk) {
    const double own = chunk_lse(b, h, chosen.index, chunk);
    if (own == kMinusInfinity) continue;
    const T factor = static_cast<T>(std::exp(own - lse));
    const std::int64_t begin = chunk * whole_.key_chunk, end = std::min(begin + whole_.key_chunk, sequence.kv_len);
    for (std::int64_t j = begin; j < end; ++j) weights(b, h, chosen.index, sequence.kv_begin + j) *= factor;
  }
}

void WeightMaps::share(Transport& transport, double timeout_seconds) {
  if (!map_.defined()) return;
  const std::vector<double> values = sum_over_ranks(transport, sums_, timeout_seconds);
  const std::int64_t rows = map_.size(2), columns = map_.size(3);
  with_floating_type(map_.dtype, [&](auto element) {
    using Element = decltype(element);
    const auto to = write<Element, 4>(map_);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto cell = static_cast<std::int64_t>(i);
      const std::int64_t c = cell % columns, r = cell / columns % rows, pair = cell / columns / rows;
      const std::int64_t queries = (r + 1) * whole_.shape.q_len / rows - r * whole_.shape.q_len / rows;
      to(pair / whole_.shape.heads, pair % whole_.shape.heads, r, c) =
          static_cast<Element>(queries ? values[i] / static_cast<double>(queries) : 0.0);
    }
  });
}

}  // namespace rootdk::distributed
