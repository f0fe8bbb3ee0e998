#include <algorithm>
#include <cstdint>
#include <utility>

#include "cuda/common/make_rule.h"
#include "cuda/hopper/backward/choice.h"
#include "cuda/hopper/backward/kernels.h"
#include "cuda/hopper/shared/head_dims.h"
#include "cuda/hopper/shared/refusal.h"
#include "cuda/launch/device.h"

namespace rootdk::cuda::hopper {
namespace {

std::string refuse_features(const BackwardCall& call) {
  const AttentionParams& p = call.params;
  const AttentionGradients& g = call.gradients;
  if (p.score != Score::dot) return "the score is not the dot product";
  if (!(call.logit_scale > 0)) return text("scale ", call.logit_scale, " is not positive");
  if (p.logits.softcap > 0 &&
      (p.logits.alibi_slopes.defined() || p.logits.relative_table.defined() || p.bias.defined())) {
    return "a softcap together with alibi_slopes, relative_table or bias is not supported";
  }
  if (!g.q.defined() && !g.k.defined() && !g.v.defined()) return "no gradient of q, k or v is asked for";
  return {};
}

template <class Element>
BackwardKernel kernel_of(int head_dim, BackwardVariant variant) {
  switch (head_dim) {
    case 64: return backward_kernel_of<Element, 64>(variant);
    case 128: return backward_kernel_of<Element, 128>(variant);
    case 192: return backward_kernel_of<Element, 192>(variant);
    default: return backward_kernel_of<Element, 256>(variant);
  }
}

TileGrid grid_of(const AttentionShape& s, std::int64_t heads, std::int64_t rows, std::int64_t total, int block) {
  TileGrid grid;
  grid.planes = static_cast<int>(s.packed ? heads : heads * s.batch);
  grid.tiles = static_cast<int>(s.packed ? total / block + s.batch : (rows + block - 1) / block);
  return grid;
}

std::string refuse_shape(const BackwardCall& call) {
  const AttentionShape& s = call.shape;
  const DType dtype = call.saved.q.dtype;
  if (dtype != DType::bf16 && dtype != DType::f16) return text("the type is ", name_of(dtype), ", needs bf16 or f16");
  if (padded_dim(kBackwardHeadDims, s.head_dim, s.value_dim) == 0) {
    return text("head_dim ", s.head_dim, " or value_dim ", s.value_dim, " is above ", kBackwardHeadDims.back());
  }
  if (s.head_dim % 8 != 0 || s.value_dim % 8 != 0) {
    return text("head_dim ", s.head_dim, " or value_dim ", s.value_dim, " is not a multiple of 8");
  }
  if (call.saved.q.elements() == 0) return "there are no queries";
  if (call.saved.k.elements() == 0) return "there are no keys";
  const std::int64_t rows = std::max(call.saved.q.size(2), call.saved.k.size(2));
  if (const std::int64_t tiles = (rows / 64 + s.batch) * s.heads * s.batch; tiles > INT32_MAX / 4) {
    return text(tiles, " tiles are more than 2^29");
  }
  return refuse_sizes(s, call.params);
}

// The softcap variant computes the slope of the cap from weights of 24 bits, which is precise enough for wide caps
// only.
constexpr double kLeastWideCap = 1.0;

BackwardVariant choose_variant(const BackwardCall& call, int head_dim) {
  const AttentionParams& p = call.params;
  const bool all = has_all_variants(head_dim);
  if (p.mask.defined() || p.block_mask.defined() || p.bias.defined() || p.logits.relative_table.defined() ||
      call.dropout.threshold > 0 || call.upstream.entropy.defined()) {
    return BackwardVariant::rich;
  }
  // The separate pass for the gradient of q supports sequences of one length only.
  const bool equal = !call.shape.packed && !p.kv_lengths.defined();
  if (!equal && has_two_passes(head_dim, BackwardVariant::plain)) return BackwardVariant::rich;
  if (p.logits.softcap > 0)
    return all && p.logits.softcap >= kLeastWideCap ? BackwardVariant::softcap : BackwardVariant::rich;
  if (p.logits.alibi_slopes.defined()) return all && p.causal ? BackwardVariant::alibi : BackwardVariant::rich;
  return BackwardVariant::plain;
}

// Orders are chosen for a device with this many multiprocessors, so that bits do not depend on the device.
constexpr int kBlocks = 132;

bool has_no_window(const BackwardCall& call) {
  const AttentionParams& p = call.params;
  return p.window_left < 0 && p.window_right < 0 && !p.kv_lengths.defined() && !call.shape.packed;
}
bool every_row_sees_every_key(const BackwardCall& call) { return !call.params.causal && has_no_window(call); }
bool every_row_sees_every_key_before(const BackwardCall& call) { return call.params.causal && has_no_window(call); }

// The order for the separate pass of the gradient of q. Nothing needs to be added, unless a batch entry has so few
// heads that blocks of queries leave multiprocessors idle: then each block has a part of the keys. Under causal masking
// the longest block has twice the average work, so two parts are best even with as many blocks as multiprocessors.
// Short parts cost more than they gain if other batch entries fill the device.
AddOrder order_of_queries(const BackwardCall& call) {
  constexpr std::int64_t kLeastKeysOfPart = 1024;  // on average
  const AttentionShape& s = call.shape;
  const bool causal = call.params.causal;
  const std::int64_t blocks = (s.q_len + kQueriesOfBlock - 1) / kQueriesOfBlock * s.heads;
  const std::int64_t keys = causal ? s.kv_len / 2 : s.kv_len;
  const int most_shift = causal ? 1 : 2;
  int shift = 0;
  while (has_no_window(call) && shift < most_shift && blocks << (causal ? shift : shift + 1) <= kBlocks &&
         keys >> (shift + 1) >= kLeastKeysOfPart) {
    ++shift;
  }
  return {.sum_shift = shift, .parts = shift > 0, .rounds = shift == 0};
}

// The orders are explained in tiles.cuh. The ring costs nothing if the starts of two key tiles are at least two query
// tiles apart; if they are one apart, the adds are the bottleneck, unless there are two sums. All key tiles of a head
// must run at the same time.
//
// In the plain order with few heads, many key tiles of one head run at the same time, each one query tile behind the
// one before. Under causal masking those that start together ascend instead, and none waits; otherwise more sums mean
// fewer key tiles to wait for. Each sum costs one more read of the gradient. The bits must not depend on what else is
// in the batch: only the heads of one batch entry count, and packed sequences have one sum.
AddOrder choose_order(const BackwardCall& call, const BackwardChoice& choice) {
  if (choice.kernel.queries) return order_of_queries(call);
  // Without a limit to the right, the last key tile would round all query tiles.
  const bool limited = call.params.causal || call.params.window_right >= 0;
  if (call.shape.packed) return {.rounds = limited};
  const int queries = choice.queries.tiles, keys = choice.keys.tiles;
  const auto heads = static_cast<int>(std::min<std::int64_t>(call.shape.kv_heads, kBlocks));
  const int at_once = std::min(keys, kBlocks / heads);
  const bool all_at_work = device_traits(call.saved.q.device.index).multiprocessors >= kBlocks;
  const bool has_ring = every_row_sees_every_key(call) && keys <= kBlocks && all_at_work;
  if (has_ring && queries <= 2 * keys && queries > 2 * (keys - 1)) {
    return {.ring = true, .ring_shift = 1, .rounds = true};
  }
  if (has_ring && queries == keys && at_once > 16) return {.ring = true, .sum_shift = 1};
  const bool can_ascend = every_row_sees_every_key_before(call) && all_at_work;
  if (can_ascend && at_once >= 24) return {.ascending = at_once, .ascending_sum_shift = 1};
  const int sum_shift = at_once >= 64 ? 2 : at_once >= 24 ? 1 : 0;
  return {.sum_shift = sum_shift, .rounds = limited && sum_shift == 0};
}

// The tiles of the planes that are processed together should stay in L2: q, the gradient of out, and the gradient of q
// in f32. With few planes, many key tiles of one head run at the same time, and each starts one query tile after the
// one before; that costs more if rows differ in length.
int heads_together(const BackwardCall& call, const BackwardChoice& choice) {
  if (choice.order.ring) return 1;
  if (choice.order.ascending > 0)
    return static_cast<int>(call.shape.kv_heads);  // whose ascending key tiles run at the same time
  const AttentionShape& s = call.shape;
  const std::int64_t plane_bytes = s.q_len * s.group() * choice.head_dim * 8;
  const bool uneven = call.params.causal || s.packed;
  const std::int64_t least = uneven && choice.head_dim <= 128 ? 16 : 4, share = (uneven ? 64 : 32) << 20;
  return static_cast<int>(std::min<std::int64_t>(std::max(least, share / plane_bytes), choice.keys.planes));
}

}  // namespace

std::string backward_refusal(const BackwardCall& call) {
  if (std::string reason = refuse_device(call.saved.q.device); !reason.empty()) return reason;
  if (std::string reason = refuse_features(call); !reason.empty()) return reason;
  if (std::string reason = refuse_shape(call); !reason.empty()) return reason;
  return refuse_layout({{"q", call.saved.q},
                        {"k", call.saved.k},
                        {"v", call.saved.v},
                        {"out", call.saved.out},
                        {"the gradient of out", call.upstream.out},
                        {"the gradient of q", call.gradients.q},
                        {"the gradient of k", call.gradients.k},
                        {"the gradient of v", call.gradients.v}});
}

BackwardChoice choose_backward(const BackwardCall& call) {
  const AttentionShape& s = call.shape;
  BackwardChoice choice;
  choice.direct = choose_direct_backward(call);
  if (choice.direct.function) return choice;
  choice.head_dim = padded_dim(kBackwardHeadDims, s.head_dim, s.value_dim);
  choice.variant = choose_variant(call, choice.head_dim);
  choice.grad_entropy = call.upstream.entropy.defined();
  choice.kernel = call.saved.q.dtype == DType::bf16 ? kernel_of<BFloat16>(choice.head_dim, choice.variant)
                                                    : kernel_of<Float16>(choice.head_dim, choice.variant);
  choice.queries = grid_of(s, s.heads, s.q_len, call.saved.q.size(2), choice.kernel.block_q);
  choice.keys = grid_of(s, s.kv_heads, s.kv_len, call.saved.k.size(2), choice.kernel.block_kv);
  choice.order = choose_order(call, choice);
  choice.heads_together = heads_together(call, choice);
  choice.query_heads_together = call.params.causal ? choice.heads_together * static_cast<int>(s.group()) : 1;
  return choice;
}

}  // namespace rootdk::cuda::hopper
