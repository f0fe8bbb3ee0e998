#pragma once

// The rich variant: logits with any term, dropout, and the gradient of the entropy, on transposed tiles of 64 keys by
// 64 queries (logits.cuh). Each term is one pass behind a branch that is uniform across the warpgroup.

#include <cmath>
#include <cstdint>

#include "cuda/hopper/backward/logits.cuh"
#include "cuda/ptx/address.cuh"
#include "cuda/ptx/named_barrier.cuh"

namespace rootdk::cuda::hopper {

// Which keys and queries of the tile a thread holds.
struct RichCoordinates {
  KeyTile tile;
  int head;
  int query;        // of s[0], counted inside the sequence
  int key;          // of s[0], counted inside the tile
  int thread;       // of the warpgroup
  int first_query;  // of the tile
};

__device__ __forceinline__ Sequence sequence_of(const KeyTile& tile, const BackwardParams& p) {
  return {.index = tile.sequence,
          .entry = entry_of(tile, p),
          .q_begin = tile.q_begin,
          .q_len = tile.q_len,
          .kv_begin = tile.kv_begin,
          .kv_len = tile.kv_len,
          .kv_visible = tile.kv_visible};
}

// Calls body(x, value) for the thread's scores x and the values of a dense tensor [batch, heads, q_len, kv_len].
template <class T, int N, class Body>
__device__ __forceinline__ void for_each_dense(float (&s)[N], const T* data, const std::int64_t (&strides)[4],
                                               const RichCoordinates& at, int entry, Body body) {
  const int key = at.tile.key0 + at.key;
  const T* first = data + entry * strides[0] + at.head * strides[1] + at.query * strides[2] + key * strides[3];
  const int rows = at.tile.q_len - at.query, keys = at.tile.kv_len - key;
  for_each_score(s, [&](float& x, int r, int offset) {
    if (offset < rows && 8 * r < keys) body(x, first[offset * strides[2] + 8 * r * strides[3]]);
  });
}

// Scores to logits in units of log2. Causal masking, window and lengths are left to mask_keys().
template <class Element, int N>
__device__ __forceinline__ void rich_logits(float (&s)[N], const BackwardParams& p, const RichCoordinates& at) {
  const LogitRule& rule = p.rule;
  const Sequence sequence = sequence_of(at.tile, p);
  const HeadRule head(rule, sequence, at.head);
  const int key = at.tile.key0 + at.key;
  if (p.softcap.cap_log2 > 0.f) {
    softcap<Threads::warp>(s, p.softcap);
  } else {
    for_each_score(s, [&](float& x, int, int) { x *= p.scale_log2; });
  }
  if (rule.alibi_slopes) {
    const float slope = -kLog2e * head.alibi_slope, distance = static_cast<float>(head.distance(at.query, key));
    for_each_score(s, [&](float& x, int r, int offset) {
      x = fmaf(slope, fabsf(distance + static_cast<float>(offset - 8 * r)), x);
    });
  }
  if (rule.relative_table) {
    for_each_score(
        s, [&](float& x, int r, int offset) { x = fmaf(kLog2e, head.table_value(at.query + offset, key + 8 * r), x); });
  }
  const auto add = [](float& x, auto value) { x = fmaf(kLog2e, static_cast<float>(value), x); };
  if (rule.bias && rule.bias.dtype == DType::f32) {
    for_each_dense(s, static_cast<const float*>(rule.bias.data), rule.bias.strides, at, sequence.entry, add);
  } else if (rule.bias) {
    for_each_dense(s, static_cast<const Element*>(rule.bias.data), rule.bias.strides, at, sequence.entry, add);
  }
  const auto hide = [](float& x, unsigned char keeps) { x = keeps ? x : -INFINITY; };
  if (rule.mask) for_each_dense(s, rule.mask.data, rule.mask.strides, at, sequence.entry, hide);
  if (rule.block_mask) {
    const int rows = at.tile.q_len - at.query, keys = at.tile.kv_len - key;
    for_each_score(s, [&](float& x, int r, int offset) {
      if (offset >= rows || 8 * r >= keys) return;
      if (!head.block_mask_keeps(at.query + offset, key + 8 * r)) x = -INFINITY;
    });
  }
}

// Sets the sign of weights that dropout drops, also of zeros. One Philox block serves eight keys of a query: the
// warpgroup computes each block once and exchanges the bits through `kept`, [query][key].
template <int N>
__device__ __forceinline__ void mark_dropped(float (&weights)[N], const BackwardParams& p, const RichCoordinates& at,
                                             std::uint32_t kept) {
  constexpr int kThreads = 128, kBlocksOfQuery = 8, kNamedBarrier = 1;
  const DropoutBits& dropout = p.rule.dropout;
#pragma unroll 1
  for (int block = at.thread; block < 64 * kBlocksOfQuery; block += kThreads) {
    const uint4 words = dropout.block(at.tile.sequence, at.head, at.first_query + block / kBlocksOfQuery,
                                      at.tile.key0 / 8 + block % kBlocksOfQuery);
    const std::uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
    std::uint32_t bits = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) bits |= static_cast<std::uint32_t>(dropout.keeps(pairs[j / 2], j)) << j;
    ptx::store_shared_byte(kept + block, bits);
  }
  ptx::named_barrier_sync(kNamedBarrier, kThreads);
  const std::uint32_t own = kept + kBlocksOfQuery * (at.query - at.first_query) + at.key / 8;
  const int bit = at.key % 8;
  for_each_score(weights, [&](float& x, int r, int offset) {
    const std::uint32_t bits = ptx::load_shared_byte(own + kBlocksOfQuery * offset + r);
    if (!((bits >> bit) & 1)) x = __uint_as_float(__float_as_uint(x) | 0x80000000u);
  });
  ptx::named_barrier_sync(kNamedBarrier, kThreads);  // before the bits of the next tile
}

__device__ __forceinline__ bool is_marked(float weight) { return __float_as_uint(weight) >> 31; }

// Sets dropped weights to 0 and scales the others: the weights that multiply values.
template <int N>
__device__ __forceinline__ void drop_marked(float (&weights)[N], float keep_scale) {
  for_each_score(weights, [&](float& x, int, int) { x = is_marked(x) ? 0.f : x * keep_scale; });
}

// Addresses of the terms of the thread's first query.
struct RichRows {
  std::uint32_t delta, negative_lse, grad_entropy;
};

// The gradients of four scores: p (m dP - delta - g ln p), times the slope of the softcap. m is the factor of dropout,
// g the upstream gradient of the entropy; delta includes the rest of the entropy's terms (prepare_kernel). c: index of
// the group of four.
__device__ __forceinline__ void rich_grad_scores(float (&gradient)[4], const float (&weight)[4],
                                                 const float* grad_weights, const BackwardParams& p,
                                                 const RichRows& rows, int c) {
  const float2 delta = ptx::load_shared_float2(rows.delta + c * 8 * sizeof(float));
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float inner = is_marked(weight[i]) ? 0.f : p.rule.dropout.keep_scale * grad_weights[i];
    gradient[i] = fabsf(weight[i]) * (inner - (i % 2 ? delta.y : delta.x));
  }
  if (p.grad_entropy) {
    const float2 row = ptx::load_shared_float2(rows.grad_entropy + c * 8 * sizeof(float));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float size = fabsf(weight[i]);
      const float moment = size > 0.f ? size * kLn2 * ptx::log2_approximate(size) : 0.f;
      gradient[i] = fmaf(-(i % 2 ? row.y : row.x), moment, gradient[i]);
    }
  }
  if (p.softcap.cap_log2 > 0.f) {
    const float2 row = ptx::load_shared_float2(rows.negative_lse + c * 8 * sizeof(float));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float logit = ptx::log2_approximate(fabsf(weight[i])) - (i % 2 ? row.y : row.x);
      gradient[i] *= softcap_slope(logit * p.inverse_cap_log2);
    }
  }
}

}  // namespace rootdk::cuda::hopper
