#include "distributed/carried_rows.h"

namespace rootdk::distributed {

RowsCarried::RowsCarried(const Whole& whole, const Tiles& tiles, const ConstTensorView& q, const TensorView& out,
                         const AttentionStats& stats, std::int64_t first_head)
    : tiles_(tiles),
      q_(q),
      out_(out),
      stats_(stats),
      first_head_(first_head),
      heads_(q.size(1)),
      rows_(q.size(2)),
      value_dim_(whole.shape.value_dim),
      head_dim_(whole.shape.head_dim),
      in_place_(out.dtype == DType::f32 && value_dim_ % CarriedRows::kColumns == 0) {
  const auto count = static_cast<std::size_t>(q.size(0) * heads_ * rows_);
  max_.resize(count);
  sum_.resize(count);
  begun_.resize(count);
  if (stats.entropy.defined() || stats.sum_p2.defined()) {
    weighted_.resize(count);
    squares_.resize(count);
  }
  if (in_place_) return;
  constexpr std::int64_t kColumns = CarriedRows::kColumns;
  sums_ = Tensor(DType::f32, {q.size(0), heads_, rows_, (value_dim_ + kColumns - 1) / kColumns * kColumns});
}

CarriedRows RowsCarried::carried(const TilePlace& place) {
  const std::int64_t h = place.head - first_head_;
  const auto at = static_cast<std::size_t>((place.batch * heads_ + h) * rows_ + place.local_query);
  const TensorView sums = (in_place_ ? out_ : sums_.view()).slice(0, place.batch, place.batch + 1).slice(1, h, h + 1);
  CarriedRows carried{.max = max_.data() + at,
                      .sum = sum_.data() + at,
                      .out = sums.as<float>() + place.local_query * sums.stride(2),
                      .out_stride = sums.stride(2),
                      .first = begun_[at] == 0};
  if (!weighted_.empty()) {
    carried.weighted = weighted_.data() + at;
    carried.squares = squares_.data() + at;
  }
  begun_[at] = 1;
  return carried;
}

void RowsCarried::attend(const TilePlace& place, const ConstTensorView& k, const ConstTensorView& v) {
  if (tiles_.visible(place) == 0) return;
  const std::int64_t h = place.head - first_head_, end = place.local_query + place.queries.rows();
  tiles_.forward(place, head_of(q_, place.batch, h).slice(2, place.local_query, end), k, v,
                 head_of(out_, place.batch, h).slice(2, place.local_query, end), {}, carried(place));
}

void RowsCarried::finish(const TilePlace& place) {
  const std::int64_t b = place.batch, h = place.head - first_head_;
  const std::int64_t begin = place.local_query, end = begin + place.queries.rows();
  AttentionStats stats;
  for (const auto field : {&AttentionStats::lse, &AttentionStats::max_logit, &AttentionStats::max_weight,
                           &AttentionStats::entropy, &AttentionStats::sum_p2}) {
    const TensorView& view = stats_.*field;
    if (view.defined()) stats.*field = view.slice(0, b, b + 1).slice(1, h, h + 1).slice(2, begin, end);
  }
  CarriedRows rows = carried(place);
  rows.last = true;
  ConstTensorView k, v;  // no keys
  k.dtype = v.dtype = q_.dtype;
  k.rank = v.rank = 4;
  k.shape = {1, 1, 0, head_dim_};
  v.shape = {1, 1, 0, value_dim_};
  k.strides = v.strides = {0, 0, 0, 1};
  tiles_.forward(place, head_of(q_, b, h).slice(2, begin, end), k, v, head_of(out_, b, h).slice(2, begin, end), stats,
                 rows);
}

}  // namespace rootdk::distributed
