#include "cuda/hopper/forward/choice.h"

#include <algorithm>
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
  const std::int64_t tiles = (s.q_len / 128 + 1) * s.heads * s.batch;
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

bool is_ranged(const ForwardCall& call) {
  const AttentionParams& p = call.params;
  return p.causal || p.window_left >= 0 || p.window_right >= 0 || p.kv_lengths.defined() || call.shape.packed;
}

// Up to this many keys the tile shape for short rows is faster: it has a second query stage, or fewer keys past the end
// in its last tile.
constexpr std::int64_t short_row(int head_dim) { return head_dim == 256 ? 512 : 1024; }

// head_dim 64: whether query tiles of 128 rows are faster than those of 192. They are where the larger ones have idle
// warpgroups in every tile, or in a last wave of blocks. A smaller tile takes about 0.8 of the time of a larger one.
bool prefers_small_tiles(const ForwardCall& call) {
  const AttentionShape& s = call.shape;
  if (s.packed) return false;
  if (s.q_len <= 128 || (s.q_len > 192 && s.q_len <= 256)) return true;
  if (call.params.causal || call.params.kv_lengths.defined()) return false;
  const std::int64_t blocks = device_traits(call.q.device.index).multiprocessors;
  const auto waves = [&](std::int64_t rows) {
    const std::int64_t tiles = (s.q_len + rows - 1) / rows * s.heads * s.batch;
    return (tiles + blocks - 1) / blocks;
  };
  return waves(192) <= 4 && 4 * waves(128) <= 5 * waves(192);
}

bool is_brief(const ForwardCall& call, int head_dim) {
  return head_dim == 64 ? prefers_small_tiles(call) : call.shape.kv_len <= short_row(head_dim);
}

Variant choose_variant(const ForwardCall& call, int head_dim) {
  const bool statistics = call.stats.entropy.defined() || call.stats.sum_p2.defined();
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

}  // namespace

std::string forward_refusal(const ForwardCall& call) {
  if (std::string reason = refuse_device(call.q.device); !reason.empty()) return reason;
  if (std::string reason = refuse_features(call); !reason.empty()) return reason;
  if (std::string reason = refuse_shape(call); !reason.empty()) return reason;
  return refuse_layout({{"q", call.q}, {"k", call.k}, {"v", call.v}, {"out", call.out}});
}

ForwardChoice choose_forward(const ForwardCall& call) {
  const int head_dim = padded_dim(kHeadDims, call.shape.head_dim, call.shape.value_dim);
  ForwardChoice choice;
  choice.variant = choose_variant(call, head_dim);
  choice.kernel = call.q.dtype == DType::bf16 ? kernel_of<BFloat16>(head_dim, choice.variant)
                                              : kernel_of<Float16>(head_dim, choice.variant);
  choice.counts_tiles = counts_tiles(call, choice.kernel.block_q);
  return choice;
}

}  // namespace rootdk::cuda::hopper
