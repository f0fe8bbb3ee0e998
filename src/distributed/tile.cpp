#include "distributed/tile.h"

#include <algorithm>

#include "core/logit_check.h"
#include "core/strided.h"
#include "dispatch/choose.h"

namespace rootdk::distributed {
namespace {

template <class View>
View one_head(const View& view, std::int64_t batch, std::int64_t head) {
  return view.slice(0, batch, batch + 1).slice(1, head, head + 1);
}

// The part of a mask or a bias, [batch, heads, rows here, kv_len] with sizes that may be 1.
ConstTensorView part_of(ConstTensorView view, const TilePlace& place, std::int64_t keys) {
  const std::int64_t begins[] = {place.batch, place.head, place.local_query, place.keys.begin};
  const std::int64_t sizes[] = {1, 1, place.queries.rows(), keys};
  for (int d = 0; d < 4; ++d) {
    if (view.size(d) == 1) continue;
    view = view.slice(d, begins[d], begins[d] + sizes[d]);
  }
  return view;
}

ConstTensorView row_of(const ConstTensorView& view, std::int64_t head) {
  if (!view.defined()) return view;
  return view.size(0) == 1 ? view : view.slice(0, head, head + 1);
}

}  // namespace

ConstTensorView head_of(const ConstTensorView& view, std::int64_t batch, std::int64_t head) {
  return one_head(view, batch, head);
}
TensorView head_of(const TensorView& view, std::int64_t batch, std::int64_t head) {
  return one_head(view, batch, head);
}

Tiles::Tiles(const Whole& whole, const AttentionParams& params, const Execution& execution, DType dtype)
    : whole_(whole),
      params_(params),
      execution_(execution),
      logit_scale_(checked_logit_scale("distributed_attention", params.logits, whole.shape.head_dim, dtype)),
      dropout_(DropoutRule::make(params.dropout, params.seed)) {
  if (params.block_mask.defined()) {
    block_mask_ = broadcast(params.block_mask,
                            {whole.shape.batch, whole.shape.heads, blocks_over(whole.shape.q_len, params.block_q),
                             blocks_over(whole.shape.kv_len, params.block_kv)});
  }
  execution_.cpu.executor = &shared_executor(1);
  execution_.cpu.workspace_limit = 0;
  // One kernel for all tiles, asked for with the largest.
  TilePlace place;
  place.queries.end = whole.query_block;
  place.keys.end = whole.key_chunk;
  ConstTensorView any;
  any.dtype = dtype;
  any.rank = 4;
  ForwardCall forward{};
  forward.q = forward.k = forward.v = any;
  forward.params.score = params.score;
  forward.execution = execution_;
  forward.shape = shape_at(place, whole.key_chunk);
  forward.dropout = dropout_;
  forward_ = dispatch::choose("distributed_attention", forward);
  BackwardCall backward{};
  backward.saved.q = backward.saved.k = backward.saved.v = any;
  backward.params.score = params.score;
  backward.execution = execution_;
  backward.shape = forward.shape;
  backward.dropout = dropout_;
  backward_ = dispatch::choose("distributed_attention_backward", backward);
}

std::int64_t Tiles::visible(const TilePlace& place) const {
  if (!keeps_any_block(place)) return 0;
  if (!params_.kv_lengths.defined()) return place.keys.rows();
  const std::int64_t length = read<std::int32_t, 1>(params_.kv_lengths)(place.batch);
  return std::clamp<std::int64_t>(length - place.keys.begin, 0, place.keys.rows());
}

AttentionShape Tiles::shape_at(const TilePlace& place, std::int64_t keys) const {
  AttentionShape shape{.batch = 1,
                       .heads = 1,
                       .kv_heads = 1,
                       .q_len = place.queries.rows(),
                       .kv_len = keys,
                       .head_dim = whole_.shape.head_dim,
                       .value_dim = whole_.shape.value_dim};
  const std::int64_t position =
      whole_.sequences.empty() ? 0 : whole_.sequence_of(place.queries).position(place.queries.begin);
  shape.origin = {.is_tile = true,
                  .sequence = whole_.packed ? place.queries.sequence : place.batch,
                  .head = place.head,
                  .query = place.queries.begin,
                  .key = place.keys.begin,
                  .first_position = position - place.keys.begin};
  return shape;
}

bool Tiles::keeps_any_block(const TilePlace& place) const {
  if (!block_mask_.defined()) return true;
  const auto keeps = read<bool, 4>(block_mask_);
  const std::int64_t rows = params_.block_q, keys = params_.block_kv;
  for (std::int64_t r = place.queries.begin / rows; r <= (place.queries.end - 1) / rows; ++r) {
    for (std::int64_t c = place.keys.begin / keys; c <= (place.keys.end - 1) / keys; ++c) {
      if (keeps(place.batch, place.head, r, c)) return true;
    }
  }
  return false;
}

// The part of the mask, with the blocks of block_mask in it: kernels know no blocks that begin before a tile.
ConstTensorView Tiles::mask_of(const TilePlace& place, std::int64_t keys, std::unique_ptr<bool[]>& memory) const {
  const ConstTensorView& whole =
      place.travelled && place.travelled->mask.defined() ? place.travelled->mask : params_.mask;
  const std::int64_t rows = place.queries.rows();
  const ConstTensorView mask = whole.defined() ? part_of(whole, place, keys) : whole;
  if (!block_mask_.defined()) return mask;
  const auto keeps_block = read<bool, 4>(block_mask_);
  const auto keeps = mask.defined() ? read<bool, 4>(broadcast(mask, {1, 1, rows, keys})) : Strided<const bool, 4>();
  memory = std::make_unique_for_overwrite<bool[]>(static_cast<std::size_t>(rows * keys));
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t block = (place.queries.begin + i) / params_.block_q;
    for (std::int64_t j = 0; j < keys; ++j) {
      memory[static_cast<std::size_t>(i * keys + j)] =
          keeps_block(place.batch, place.head, block, (place.keys.begin + j) / params_.block_kv) &&
          (!keeps || keeps(0, 0, i, j));
    }
  }
  return {memory.get(), {1, 1, rows, keys}};
}

ConstTensorView Tiles::bias_of(const TilePlace& place, std::int64_t keys) const {
  const ConstTensorView& bias =
      place.travelled && place.travelled->bias.defined() ? place.travelled->bias : params_.bias;
  return bias.defined() ? part_of(bias, place, keys) : bias;
}

AttentionParams Tiles::params_at(const TilePlace& place, std::int64_t keys, bool sinks,
                                 std::unique_ptr<bool[]>& mask_memory) const {
  AttentionParams params;
  params.score = params_.score;
  params.logits = params_.logits;
  params.logits.relative_table = row_of(params_.logits.relative_table, place.head);
  params.logits.alibi_slopes = row_of(params_.logits.alibi_slopes, place.head);
  params.logits.sinks = sinks ? row_of(params_.logits.sinks, place.head) : ConstTensorView();
  params.additive_v = row_of(params_.additive_v, place.head);
  params.causal = params_.causal;
  params.window_left = params_.window_left;
  params.window_right = params_.window_right;
  params.mask = mask_of(place, keys, mask_memory);
  params.bias = bias_of(place, keys);
  params.dropout = params_.dropout;
  params.seed = params_.seed;
  return params;
}

ForwardCall Tiles::call_at(const TilePlace& place, const ConstTensorView& q, const ConstTensorView& k,
                           const ConstTensorView& v, bool sinks, std::unique_ptr<bool[]>& mask_memory) const {
  const std::int64_t keys = place.keys.rows() ? visible(place) : 0;
  ForwardCall call{};
  call.q = q;
  call.k = k.slice(2, 0, keys);
  call.v = v.slice(2, 0, keys);
  call.params = params_at(place, keys, sinks, mask_memory);
  call.execution = execution_;
  call.shape = shape_at(place, keys);
  call.logit_scale = logit_scale_;
  call.dropout = dropout_;
  return call;
}

void Tiles::forward(const TilePlace& place, const ConstTensorView& q, const ConstTensorView& k,
                    const ConstTensorView& v, const TensorView& out, const AttentionStats& stats) const {
  forward(place, q, k, v, out, stats, {});
}

void Tiles::forward(const TilePlace& place, const ConstTensorView& q, const ConstTensorView& k,
                    const ConstTensorView& v, const TensorView& out, const AttentionStats& stats,
                    const CarriedRows& carried) const {
  std::unique_ptr<bool[]> mask;
  ForwardCall call = call_at(place, q, k, v, carried.last, mask);
  call.out = out;
  call.stats = stats;
  call.carried = carried;
  forward_.run(call);
}

void Tiles::backward(const TilePlace& place, const AttentionSaved& saved, const AttentionUpstream& upstream,
                     const AttentionGradients& gradients) const {
  const std::int64_t keys = visible(place);
  std::unique_ptr<bool[]> mask;
  BackwardCall call{.saved = saved,
                    .upstream = upstream,
                    .gradients = gradients,
                    .params = params_at(place, keys, true, mask),
                    .execution = execution_,
                    .shape = shape_at(place, keys),
                    .logit_scale = logit_scale_,
                    .dropout = dropout_};
  call.saved.k = saved.k.slice(2, 0, keys);
  call.saved.v = saved.v.slice(2, 0, keys);
  for (TensorView* gradient : {&call.gradients.k, &call.gradients.v, &call.gradients.column_mass}) {
    if (gradient->defined()) *gradient = gradient->slice(2, 0, keys);
  }
  backward_.run(call);
}

namespace {

// Any bias, or none, with all rows and keys of a tile.
template <class T>
Tensor whole_bias(const ConstTensorView& bias, std::int64_t rows, std::int64_t keys) {
  Tensor whole(dtype_of<T>, {1, 1, rows, keys});
  if (!bias.defined()) return whole;
  const auto to = write<T, 4>(whole.view());
  with_floating_type(bias.dtype, [&](auto element) {
    const auto from = read<decltype(element), 4>(broadcast(bias, {1, 1, rows, keys}));
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < keys; ++j) to(0, 0, i, j) = static_cast<T>(to_double(from(0, 0, i, j)));
    }
  });
  return whole;
}

}  // namespace

// A bias is added last: its gradient is that of the logits.
void Tiles::logit_gradient(const TilePlace& place, const AttentionSaved& saved, const AttentionUpstream& upstream,
                           const TensorView& gradient) const {
  const std::int64_t keys = visible(place), rows = place.queries.rows();
  const ConstTensorView given = bias_of(place, keys);
  const Tensor bias =
      gradient.dtype == DType::f64 ? whole_bias<double>(given, rows, keys) : whole_bias<float>(given, rows, keys);
  std::unique_ptr<bool[]> mask;
  BackwardCall call{.saved = saved,
                    .upstream = upstream,
                    .gradients = {.bias = gradient},
                    .params = params_at(place, keys, true, mask),
                    .execution = execution_,
                    .shape = shape_at(place, keys),
                    .logit_scale = logit_scale_,
                    .dropout = dropout_};
  call.params.bias = bias;
  call.saved.k = saved.k.slice(2, 0, keys);
  call.saved.v = saved.v.slice(2, 0, keys);
  backward_.run(call);
}

}  // namespace rootdk::distributed
