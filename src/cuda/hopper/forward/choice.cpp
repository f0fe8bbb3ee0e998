#include "cuda/hopper/forward/choice.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "cuda/hopper/forward/kernels.h"
#include "cuda/hopper/shared/head_dims.h"
#include "cuda/hopper/shared/params.h"
#include "cuda/hopper/shared/refusal.h"
#include "cuda/launch/device.h"

namespace rootdk::cuda::hopper {
namespace {

std::string refuse_features(const ForwardCall& call) {
  const AttentionParams& p = call.params;
  if (p.score != Score::dot) return "the score is not the dot product";
  if (p.block_mask.defined()) return "block_mask is not supported";
  if (call.stats.column_mass.defined()) return "column_mass needs a second pass";
  if (call.stats.pooled_map.defined()) return "pooled_map is not supported";
  if (call.stats.weights.defined()) return "exact weights are not supported";
  return {};
}

std::string refuse_shape(const ForwardCall& call) {
  const AttentionShape& s = call.shape;
  if (call.q.dtype != DType::bf16 && call.q.dtype != DType::f16) {
    return text("the type is ", name_of(call.q.dtype), ", needs bf16 or f16");
  }
  if (padded_dim(kHeadDims, s.head_dim, s.value_dim) == 0) {
    return text("head_dim ", s.head_dim, " or value_dim ", s.value_dim, " is above ", kHeadDims.back());
  }
  if (s.value_dim % 8 != 0) return text("value_dim ", s.value_dim, " is not a multiple of 8");
  if (s.kv_len == 0 || call.k.size(2) == 0) return "there are no keys";
  if (std::max({call.q.size(2), call.k.size(2), s.q_len, s.kv_len}) >= kNoLimit) {
    return text("q_len ", s.q_len, " or kv_len ", s.kv_len, " is not below ", kNoLimit);
  }
  const std::int64_t tiles = (s.q_len / 64 + 1) * s.heads * s.batch;
  if (tiles > INT32_MAX) return text(tiles, " query tiles are more than 2^31");
  return {};
}

// The fastest variant that supports every term of the call, statistics aside.
Variant variant_of_terms(const ForwardCall& call) {
  const AttentionParams& p = call.params;
  const bool others = p.mask.defined() || p.bias.defined() || p.logits.relative_table.defined() ||
                      call.dropout.threshold > 0 || !(call.logit_scale > 0);
  if (others) return Variant::rich;
  if (p.logits.softcap > 0) return p.logits.alibi_slopes.defined() ? Variant::rich : Variant::softcap;
  if (p.logits.alibi_slopes.defined()) return p.causal ? Variant::alibi : Variant::rich;
  return Variant::ranged;
}

bool wants_moments(const ForwardCall& call) { return call.stats.entropy.defined() || call.stats.sum_p2.defined(); }

// No term of the logits but the scale, and no statistics that need more than the sums of the softmax.
bool is_plain(const ForwardCall& call) { return variant_of_terms(call) == Variant::ranged && !wants_moments(call); }

bool is_ranged(const ForwardCall& call) {
  const AttentionParams& p = call.params;
  return p.causal || p.window_left >= 0 || p.window_right >= 0 || p.kv_lengths.defined() || call.shape.packed;
}

// Up to this many keys the tile shape for short rows is faster: it has a second query stage, or fewer keys past the end
// in its last tile.
constexpr std::int64_t short_row(int head_dim) { return head_dim == 256 ? 512 : 1024; }

constexpr std::int64_t kShortestMixed = 256;  // keys
constexpr double kSmallTileTime = 0.8;        // of a query tile of 128 rows, where one of 192 rows takes 1

std::int64_t waves_of(const AttentionShape& s, std::int64_t tile_rows, std::int64_t blocks) {
  const std::int64_t tiles = (s.q_len + tile_rows - 1) / tile_rows * s.heads * s.batch;
  return (tiles + blocks - 1) / blocks;
}

// head_dim 64: whether query tiles of 128 rows are faster than those of 192. They are where the larger ones have idle
// warpgroups in every tile, or in a last wave of blocks.
bool prefers_small_tiles(const ForwardCall& call) {
  const AttentionShape& s = call.shape;
  if (s.packed) return false;
  if (s.q_len <= 128 || (s.q_len > 192 && s.q_len <= 256)) return true;
  if (call.params.causal || call.params.kv_lengths.defined()) return false;
  const std::int64_t blocks = device_traits(call.q.device.index).multiprocessors;
  const std::int64_t tall = waves_of(s, 192, blocks);
  return tall <= 4 && kSmallTileTime * static_cast<double>(waves_of(s, 128, blocks)) <= static_cast<double>(tall);
}

bool is_brief(const ForwardCall& call, int head_dim) {
  return head_dim == 64 ? prefers_small_tiles(call) : call.shape.kv_len <= short_row(head_dim);
}

Variant choose_variant(const ForwardCall& call, int head_dim) {
  const bool statistics = wants_moments(call);
  Variant variant = variant_of_terms(call);
  if (statistics) variant = variant == Variant::ranged ? Variant::sampled : Variant::rich;
  if ((variant == Variant::ranged || variant == Variant::sampled) && !is_ranged(call)) {
    const Variant full = variant == Variant::sampled ? Variant::full_sampled : Variant::full;
    if (is_built(head_dim, full)) return full;
  }
  if ((variant == Variant::ranged || variant == Variant::sampled) && is_brief(call, head_dim)) {
    const Variant brief = variant == Variant::sampled ? Variant::brief_sampled : Variant::brief;
    if (is_built(head_dim, brief)) return brief;
  }
  return is_built(head_dim, variant) ? variant : Variant::rich;
}

// Whether blocks that are free take the next tile: where tiles differ in their work, and a block has more than one. The
// counter costs a launch.
bool counts_tiles(const ForwardCall& call, int block_q) {
  const AttentionShape& s = call.shape;
  if (!s.packed && !call.params.kv_lengths.defined() && !call.params.causal) return false;
  const std::int64_t tiles = (s.q_len + block_q - 1) / block_q * s.heads * s.batch;
  return tiles > device_traits(call.q.device.index).multiprocessors;
}

// Tiles of two heights, where they end clearly earlier than tiles of one height; else empty. Rows must cost the same,
// and waves be few.
TileHeights mixed_heights(const ForwardCall& call, int head_dim) {
  constexpr std::int64_t kMostWaves = 16;
  constexpr double kGain = 0.97;
  const AttentionShape& s = call.shape;
  if (head_dim != kMixedHeadDim || is_ranged(call) || s.kv_len <= kShortestMixed) return {};
  const std::int64_t blocks = device_traits(call.q.device.index).multiprocessors;
  const std::int64_t tall = waves_of(s, 192, blocks);
  if (tall > kMostWaves) return {};
  const TileHeights heights = choose_heights(s.q_len, s.heads * s.batch, blocks);
  const double small = kSmallTileTime * static_cast<double>(waves_of(s, 128, blocks));
  return heights.time <= kGain * std::min(static_cast<double>(tall), small) ? heights : TileHeights{};
}

// The first shape that suits the call, or N.
template <std::size_t N>
std::size_t find_short_shape(const std::array<ShortShape, N>& shapes, const AttentionShape& s, std::int64_t blocks) {
  const auto suits = [&](const ShortShape& shape) {
    if (s.kv_len > shape.keys) return false;
    return !shape.many_heads || (s.q_len <= shape.most_rows() && s.heads * s.batch > 4 * blocks);
  };
  return static_cast<std::size_t>(std::find_if(shapes.begin(), shapes.end(), suits) - shapes.begin());
}

// Rows of a query tile over few keys: fewer than a block holds, where all tiles then still run side by side.
int choose_short_rows(const AttentionShape& s, const ShortShape& shape, std::int64_t blocks) {
  int rows = shape.most_rows();
  while (rows / 2 >= shape.least_rows() && waves_of(s, rows / 2, blocks * shape.blocks) == 1) rows /= 2;
  return rows;
}

template <class Element, int HeadDim>
ForwardChoice choose_short(const ForwardCall& call) {
  const std::int64_t blocks = device_traits(call.q.device.index).multiprocessors;
  const auto& shapes = kShortShapes<HeadDim>;
  const std::size_t index = find_short_shape(shapes, call.shape, blocks);
  if (index == shapes.size()) return {};
  return {.kernel = short_kernel_of<Element, HeadDim>(index),
          .short_shape = shapes[index],
          .short_rows = choose_short_rows(call.shape, shapes[index], blocks)};
}

// Few keys; without a kernel: there are too many, or too many columns.
template <class Element>
ForwardChoice choose_short(const ForwardCall& call, int head_dim) {
  if (call.shape.packed) return {};
  switch (head_dim) {
    case 64: return choose_short<Element, 64>(call);
    case 96: return choose_short<Element, 96>(call);
    case 128: return choose_short<Element, 128>(call);
    default: return {};
  }
}

template <class Element>
ForwardKernelHandle kernel_of(int head_dim, Variant variant) {
  switch (head_dim) {
    case 64: return forward_kernel_of<Element, 64>(variant);
    case 96: return forward_kernel_of<Element, 96>(variant);
    case 128: return forward_kernel_of<Element, 128>(variant);
    case 192: return forward_kernel_of<Element, 192>(variant);
    default: return forward_kernel_of<Element, 256>(variant);
  }
}

template <class Element>
ForwardChoice choose(const ForwardCall& call) {
  const int head_dim = padded_dim(kHeadDims, call.shape.head_dim, call.shape.value_dim);
  if (is_plain(call)) {  // all kernels of such a call give the same bits
    const ForwardChoice few_keys = choose_short<Element>(call, head_dim);
    if (few_keys.kernel.function) return few_keys;
    const TileHeights heights = mixed_heights(call, head_dim);
    if (heights.time > 0) return {.kernel = mixed_kernel_of<Element>(), .heights = heights};
  }
  ForwardChoice choice;
  choice.kernel = kernel_of<Element>(head_dim, choose_variant(call, head_dim));
  choice.counts_tiles = counts_tiles(call, choice.kernel.block_q);
  return choice;
}

}  // namespace

std::string forward_refusal(const ForwardCall& call) {
  if (std::string reason = refuse_device(call.q.device); !reason.empty()) return reason;
  if (std::string reason = refuse_features(call); !reason.empty()) return reason;
  if (std::string reason = refuse_shape(call); !reason.empty()) return reason;
  return refuse_layout({{"q", call.q}, {"k", call.k}, {"v", call.v}, {"out", call.out}});
}

ForwardChoice choose_forward(const ForwardCall& call) {
  return call.q.dtype == DType::bf16 ? choose<BFloat16>(call) : choose<Float16>(call);
}

}  // namespace rootdk::cuda::hopper
