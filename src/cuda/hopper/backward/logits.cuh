#pragma once

// Scores to weights, and gradients of weights to gradients of scores, on transposed tiles. A thread holds parts of two
// keys, r = 0 and, 8 keys below, r = 1; s[4 c + 2 r + e] is query 8 c + 2 (lane % 4) + e of the tile. Logits are in
// units of log2.

#include <cmath>
#include <cstdint>

#include "cuda/hopper/backward/tiles.cuh"
#include "cuda/hopper/shared/logit_terms.cuh"
#include "cuda/ptx/address.cuh"
#include "cuda/ptx/arithmetic.cuh"
#include "cuda/ptx/unpack.cuh"

namespace rootdk::cuda::hopper {

// Sets scores to -inf where the query does not see the key. first_row: the first query that sees the key of s[0],
// counted from the query of s[0]; rows: how many queries see it; keys: how many keys exist from that key on.
template <int N>
__device__ __forceinline__ void mask_keys(float (&s)[N], int first_row, unsigned rows, int keys) {
  const int low[2] = {first_row, first_row + 8};
  const unsigned width[2] = {keys > 0 ? rows : 0u, keys > 8 ? rows : 0u};
  for_each_score(
      s, [&](float& x, int r, int offset) { x = static_cast<unsigned>(offset - low[r]) < width[r] ? x : -INFINITY; });
}

// s <- 2^(s * unit + negative_lse), the weights. negative_lse: address of the term of s[0]'s query.
template <int N>
__device__ __forceinline__ void to_weights(float (&s)[N], float unit, std::uint32_t negative_lse) {
#pragma unroll
  for (int c = 0; c < N / 4; ++c) {
    const float2 row = ptx::load_shared_float2(negative_lse + c * 8 * sizeof(float));
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float* pair = &s[4 * c + 2 * r];
      pair[0] = ptx::exp2_approximate(fmaf(pair[0], unit, row.x));
      pair[1] = ptx::exp2_approximate(fmaf(pair[1], unit, row.y));
    }
  }
}

// The same with ALiBi, if no key lies to the right of its query. distance is the position of the tile's first query
// minus the key of s[0]; negative_lse already includes the distance from the first query to each of the others
// (`prepare`).
template <int N>
__device__ __forceinline__ void to_weights_alibi(float (&s)[N], float unit, std::uint32_t negative_lse,
                                                 float slope_log2, int distance) {
  const float first[2] = {-slope_log2 * static_cast<float>(distance), -slope_log2 * static_cast<float>(distance - 8)};
#pragma unroll
  for (int c = 0; c < N / 4; ++c) {
    const float2 row = ptx::load_shared_float2(negative_lse + c * 8 * sizeof(float));
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float* pair = &s[4 * c + 2 * r];
      pair[0] = ptx::exp2_approximate(fmaf(pair[0], unit, row.x + first[r]));
      pair[1] = ptx::exp2_approximate(fmaf(pair[1], unit, row.y + first[r]));
    }
  }
}

template <int N>
__device__ __forceinline__ void subtract_delta(float (&grad_weights)[N], std::uint32_t delta) {
#pragma unroll
  for (int c = 0; c < N / 4; ++c) {
    const float2 row = ptx::load_shared_float2(delta + c * 8 * sizeof(float));
    grad_weights[4 * c] -= row.x;
    grad_weights[4 * c + 1] -= row.y;
    grad_weights[4 * c + 2] -= row.x;
    grad_weights[4 * c + 3] -= row.y;
  }
}

// The slope of cap tanh(x / cap) is 1 - tanh^2. tanh is recomputed as (log2(weight) - negative_lse) / cap_log2, so that
// the logits need not be kept in registers. A weight of 0 makes this infinite, or NaN in a row that sees no key: then
// the slope is 0.
__device__ __forceinline__ float softcap_slope(float tanh) { return fmaxf(fmaf(-tanh, tanh, 1.f), 0.f); }

// The weights are rounded to 16 bits as operands, but the gradients of scores need more precise ones. So the highest
// eight of the bits that rounding drops are kept as well, four tails to a register. Read as a signed byte, a tail is
// the exact weight minus the rounded one: a tail of 128 or more means that the weight was rounded up. (At an exact tie
// the sign may be wrong: that weight is then off by one unit in the last of its 16 bits. f16 weights below 2^-14 lose
// more than these eight bits and keep their rounding error.)
template <class Element>
struct Tail;
template <>
struct Tail<__nv_bfloat16> {  // f32 has 16 bits more: byte 1 is the highest dropped one
  static constexpr int kShift = 0;
  static constexpr std::uint32_t kUnit = 255;  // of the tail, in bits of f32; 256 would not fit into a byte
};
template <>
struct Tail<__half> {  // f32 has 13 bits more
  static constexpr int kShift = 3;
  static constexpr std::uint32_t kUnit = 32;
};

template <class Element, int N>
__device__ __forceinline__ void to_tails(const float (&s)[N], std::uint32_t (&tails)[N / 4]) {
#pragma unroll
  for (int c = 0; c < N / 4; ++c) {
    std::uint32_t bits[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) bits[i] = __float_as_uint(s[4 * c + i]) << Tail<Element>::kShift;
    tails[c] = __byte_perm(__byte_perm(bits[0], bits[1], 0x0051), __byte_perm(bits[2], bits[3], 0x0051), 0x5410);
  }
}

// The weight plus its tail, byte Index of `tails`. dp4a multiplies four bytes, of which the unit selects one, and adds.
template <class Element, int Index>
__device__ __forceinline__ float with_tail(float weight, std::uint32_t tails) {
  int bits;
  asm("dp4a.s32.u32 %0, %1, %2, %3;"
      : "=r"(bits)
      : "r"(tails), "n"(Tail<Element>::kUnit << (8 * Index)), "r"(__float_as_int(weight)));
  return __int_as_float(bits);
}

// grad_scores = weights * grad_weights (times the slope of the softcap), rounded to 16 bits, in the layout of the
// weights.
template <class C>
__device__ __forceinline__ void to_grad_scores(const std::uint32_t (&weights)[C::kBlockQ / 4],
                                               const std::uint32_t (&tails)[C::kBlockQ / 8],
                                               const float (&grad_weights)[C::kBlockQ / 2],
                                               std::uint32_t (&grad_scores)[C::kBlockQ / 4], std::uint32_t negative_lse,
                                               float inverse_cap_log2) {
  using Element = typename C::Element;
#pragma unroll
  for (int c = 0; c < C::kBlockQ / 8; ++c) {
    const float2 upper = ptx::unpack<Element>(weights[2 * c]), lower = ptx::unpack<Element>(weights[2 * c + 1]);
    float weight[4] = {with_tail<Element, 0>(upper.x, tails[c]), with_tail<Element, 1>(upper.y, tails[c]),
                       with_tail<Element, 2>(lower.x, tails[c]), with_tail<Element, 3>(lower.y, tails[c])};
    if constexpr (C::kVariant == BackwardVariant::softcap) {
      const float2 row = ptx::load_shared_float2(negative_lse + c * 8 * sizeof(float));
      const float lse_over_cap[2] = {-row.x * inverse_cap_log2, -row.y * inverse_cap_log2};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        weight[i] *= softcap_slope(fmaf(ptx::log2_approximate(weight[i]), inverse_cap_log2, lse_over_cap[i % 2]));
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      grad_scores[2 * c + r] = ptx::pack<Element>(weight[2 * r] * grad_weights[4 * c + 2 * r],
                                                  weight[2 * r + 1] * grad_weights[4 * c + 2 * r + 1]);
    }
  }
}

}  // namespace rootdk::cuda::hopper
