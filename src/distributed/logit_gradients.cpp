#include "distributed/logit_gradients.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "distributed/sum_over_ranks.h"

namespace rootdk::distributed {

LogitGradients::LogitGradients(const Call& call, const Tiles& tiles, const AttentionGradients& gradients,
                               const RowsGiven& given)
    : call_(call),
      tiles_(tiles),
      bias_(given.bias ? gradients.bias : TensorView()),
      table_(gradients.relative_table),
      slopes_(gradients.alibi_slopes),
      additive_(gradients.additive_v),
      mutexes_(static_cast<std::size_t>(call.whole.shape.heads)) {
  auto room = [](const TensorView& view) {
    return view.defined() ? static_cast<std::size_t>(view.elements()) : std::size_t{0};
  };
  table_sums_.resize(room(table_));
  slope_sums_.resize(room(slopes_));
  additive_sums_.resize(room(additive_));
}

// Tasks have no element of the gradient of the bias in common.
void LogitGradients::add(const Run& keys, const std::vector<const LocalRun*>& blocks, const TileOf& tile_of) {
  const AttentionShape& s = call_.whole.shape;
  const bool one_entry = bias_.defined() && bias_.view().size(0) == 1,
             one_head = bias_.defined() && bias_.view().size(1) == 1;
  const std::int64_t entries = one_entry ? 1 : s.batch, heads = one_head ? 1 : s.heads;
  const auto count = static_cast<std::int64_t>(blocks.size());
  call_.executor().parallel_for(entries * heads * count, [&](std::int64_t task) {
    const LocalRun& block = *blocks[static_cast<std::size_t>(task % count)];
    const std::int64_t entry = task / count / heads, head = task / count % heads;
    for (std::int64_t b = entry; b < (one_entry ? s.batch : entry + 1); ++b) {
      for (std::int64_t h = head; h < (one_head ? s.heads : head + 1); ++h) {
        add_tile({.batch = b, .head = h, .queries = block.run, .keys = keys, .local_query = block.local}, tile_of);
      }
    }
  });
}

void LogitGradients::add_tile(const TilePlace& place, const TileOf& tile_of) {
  if (tiles_.visible(place) == 0) return;
  AttentionSaved saved;
  AttentionUpstream upstream;
  tile_of(place, saved, upstream);
  const bool doubles = saved.q.dtype == DType::f64;
  if (bias_.defined() || table_.defined() || slopes_.defined()) {
    doubles ? add_logits<double>(place, saved, upstream) : add_logits<float>(place, saved, upstream);
  }
  if (additive_.defined()) doubles ? add_additive<double>(place, tile_of) : add_additive<float>(place, tile_of);
}

template <class T>
void LogitGradients::add_logits(const TilePlace& place, const AttentionSaved& saved,
                                const AttentionUpstream& upstream) {
  const std::int64_t rows = place.queries.rows(), keys = tiles_.visible(place);
  const auto logits = std::make_unique_for_overwrite<T[]>(static_cast<std::size_t>(rows * keys));
  tiles_.logit_gradient(place, saved, upstream, TensorView(logits.get(), {1, 1, rows, keys}));
  if (bias_.defined()) add_to_bias(place, logits.get(), keys);
  if (table_.defined() || slopes_.defined()) add_to_shared(place, logits.get(), keys);
}

template <class T>
void LogitGradients::add_to_bias(const TilePlace& place, const T* logits, std::int64_t keys) {
  const TensorView view = bias_.view();
  const auto to = write<T, 4>(view);
  const std::int64_t b = view.size(0) == 1 ? 0 : place.batch, h = view.size(1) == 1 ? 0 : place.head;
  for (std::int64_t i = 0; i < place.queries.rows(); ++i) {
    for (std::int64_t j = 0; j < keys; ++j) {
      to(b, h, place.local_query + i, view.size(3) == 1 ? 0 : place.keys.begin + j) += logits[i * keys + j];
    }
  }
}

// A row adds one number to each entry of the table that it meets in the chunk, and one to the slope.
template <class T>
void LogitGradients::add_to_shared(const TilePlace& place, const T* logits, std::int64_t keys) {
  const std::int64_t entries = table_.defined() ? table_.size(1) : 0, zero = call_.params.logits.relative_zero;
  ExactSum* table = table_.defined() ? table_sums_.data() + (table_.size(0) == 1 ? 0 : place.head) * entries : nullptr;
  const bool shared = table_.defined() && table_.size(0) == 1;
  const std::lock_guard lock(mutexes_[static_cast<std::size_t>(shared ? 0 : place.head)]);
  for (std::int64_t i = 0; i < place.queries.rows(); ++i) {
    const std::int64_t first =
        call_.whole.sequence_of(place.queries).position(place.queries.begin + i) - place.keys.begin;
    const T* row = logits + i * keys;
    for (std::int64_t j = 0; table && j < keys;) {
      const std::int64_t entry = std::clamp<std::int64_t>(first - j + zero, 0, entries - 1);
      double sum = row[j++];
      while (j < keys && std::clamp<std::int64_t>(first - j + zero, 0, entries - 1) == entry) sum += row[j++];
      table[entry].add(sum);
    }
    if (!slopes_.defined()) continue;
    double sum = 0;
    for (std::int64_t j = 0; j < keys; ++j)
      sum -= static_cast<double>(row[j]) * static_cast<double>(std::abs(first - j));
    slope_sums_[static_cast<std::size_t>(place.head)].add(sum);
  }
}

// The kernels sum this one over the rows of a tile, which are not the same on every rank: row by row.
template <class T>
void LogitGradients::add_additive(const TilePlace& place, const TileOf& tile_of) {
  const std::int64_t width = additive_.size(1);
  std::vector<T> values(static_cast<std::size_t>(width));
  for (std::int64_t i = 0; i < place.queries.rows(); ++i) {
    TilePlace row = place;
    row.local_query += i;
    row.queries.begin += i;
    row.queries.end = row.queries.begin + 1;
    if (tiles_.visible(row) == 0) continue;
    AttentionSaved saved;
    AttentionUpstream upstream;
    tile_of(row, saved, upstream);
    AttentionGradients gradients;
    gradients.additive_v = TensorView(values.data(), {1, width});
    tiles_.backward(row, saved, upstream, gradients);
    const std::lock_guard lock(mutexes_[static_cast<std::size_t>(place.head)]);
    for (std::int64_t d = 0; d < width; ++d) {
      additive_sums_[static_cast<std::size_t>(place.head * width + d)].add(values[static_cast<std::size_t>(d)]);
    }
  }
}

namespace {

void write_values(const std::vector<double>& values, const TensorView& gradient) {
  with_floating_type(gradient.dtype, [&](auto element) {
    using Element = decltype(element);
    const std::int64_t columns = gradient.size(gradient.rank - 1);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      if (gradient.rank == 1) {
        write<Element, 1>(gradient)(at) = static_cast<Element>(values[i]);
      } else {
        write<Element, 2>(gradient)(at / columns, at % columns) = static_cast<Element>(values[i]);
      }
    }
  });
}

}  // namespace

void LogitGradients::write_sums(Transport& transport, const std::vector<ExactSum>& sums,
                                const TensorView& gradient) const {
  if (!gradient.defined()) return;
  write_values(sum_over_ranks(transport, sums, call_.distributed.timeout_seconds), gradient);
}

void LogitGradients::finish(Transport& transport) {
  bias_.round();
  write_sums(transport, table_sums_, table_);
  write_sums(transport, slope_sums_, slopes_);
  write_sums(transport, additive_sums_, additive_);
}

namespace {

// p_sink (g_lse - D + g_entropy (1 - p_sink - H)) over the rows here of each head.
template <class Element>
void add_sink_terms(const Call& call, const AttentionSaved& saved, const AttentionUpstream& upstream,
                    std::vector<ExactSum>& sums) {
  using Small = std::conditional_t<std::is_same_v<Element, double>, double, float>;
  const AttentionShape& s = call.whole.shape;
  const auto out = read<Element, 4>(saved.out), grad_out = read<Element, 4>(upstream.out);
  const auto lse = read<Small, 3>(saved.lse);
  const auto sink = read<Small, 1>(call.params.logits.sinks);
  auto optional = [](const ConstTensorView& view) {
    return view.defined() ? read<Small, 3>(view) : Strided<const Small, 3>();
  };
  const auto entropy = optional(saved.entropy), grad_lse = optional(upstream.lse),
             grad_entropy = optional(upstream.entropy);
  call.executor().parallel_for(s.heads, [&](std::int64_t h) {
    for (std::int64_t b = 0; b < s.batch; ++b) {
      for (std::int64_t i = 0; i < saved.q.size(2); ++i) {
        if (lse(b, h, i) == -std::numeric_limits<Small>::infinity()) continue;
        const double p_sink = std::exp(static_cast<double>(sink(h)) - lse(b, h, i));
        double inner = 0;
        for (std::int64_t d = 0; d < s.value_dim; ++d) {
          inner -= to_double(grad_out(b, h, i, d)) * to_double(out(b, h, i, d));
        }
        if (grad_lse) inner += grad_lse(b, h, i);
        if (grad_entropy) inner += grad_entropy(b, h, i) * (1 - p_sink - entropy(b, h, i));
        sums[static_cast<std::size_t>(h)].add(p_sink * inner);
      }
    }
  });
}

}  // namespace

void sink_gradient(Transport& transport, const Call& call, const AttentionSaved& saved,
                   const AttentionUpstream& upstream, const TensorView& gradient) {
  std::vector<ExactSum> sums(static_cast<std::size_t>(call.whole.shape.heads));
  with_floating_type(saved.q.dtype,
                     [&](auto element) { add_sink_terms<decltype(element)>(call, saved, upstream, sums); });
  write_values(sum_over_ranks(transport, sums, call.distributed.timeout_seconds), gradient);
}

}  // namespace rootdk::distributed
