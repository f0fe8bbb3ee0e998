#pragma once

// From a warp's tile of raw scores to its logits. One feature at a time over the whole tile: a feature that is not
// asked for costs one branch a tile.

#include "cuda/portable/tile.h"

namespace rootdk::cuda::portable {

// Which queries and keys a warp's tile covers. Forward and the gradient of q have queries as rows; the gradients of k
// and v work on the transposed tile, keys as rows.
enum class Rows { queries, keys };

template <Rows kRows>
struct TilePlace {
  int first_query = 0, first_key = 0;

  __device__ int query(int n, int e) const {
    return first_query + (kRows == Rows::queries ? fragment_row(e) : fragment_column(n, e));
  }
  __device__ int key(int n, int e) const {
    return first_key + (kRows == Rows::queries ? fragment_column(n, e) : fragment_row(e));
  }
};

template <int N, class Body>
__device__ void for_each_element(Body body) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) body(n, e);
  }
}

// One bit for each element of a warp's tile: element e of column group n has bit 4 n + e.
using TileBits = std::uint32_t;
inline constexpr TileBits kAllBits = ~0u;
__device__ inline bool has_bit(TileBits bits, int n, int e) { return (bits >> (4 * n + e) & 1u) != 0; }

template <int N, class Predicate>
__device__ TileBits bits_where(Predicate predicate) {
  static_assert(4 * N <= 32);
  TileBits bits = 0;
  for_each_element<N>([&](int n, int e) { bits |= static_cast<TileBits>(predicate(n, e)) << (4 * n + e); });
  return bits;
}

// Adds the bias, in its own element type, to the elements in range.
template <class T, int N, Rows kRows>
__device__ void add_bias(WarpTile<N>& s, const HeadRule& head, TilePlace<kRows> place, TileBits in_range) {
  const AnyView<4>& bias = head.rule.bias;
  const T* base = static_cast<const T*>(bias.data) + bias.offset(head.sequence.entry, head.head);
  for_each_element<N>([&](int n, int e) {
    const T* element = base + place.query(n, e) * bias.strides[2] + place.key(n, e) * bias.strides[3];
    if (has_bit(in_range, n, e)) s[n][e] += static_cast<float>(*element);
  });
}

// Per-element features between the score and the mask. slope, where given, is multiplied by the derivative of each
// feature.
template <int N, Rows kRows>
__device__ void apply_features(WarpTile<N>& s, WarpTile<N>* slope, const HeadRule& head, TilePlace<kRows> place,
                               TileBits in_range) {
  const LogitRule& rule = head.rule;
  if (rule.q_inverse_norm) {
    // In one dimension the cosine is a sign: it has no gradient.
    const float slope_factor = rule.head_dim == 1 ? 0.0f : 1.0f;
    for_each_element<N>([&](int n, int e) {
      const float factor = has_bit(in_range, n, e) ? head.norm_factor(place.query(n, e), place.key(n, e)) : 0.0f;
      s[n][e] *= factor;
      if (slope) (*slope)[n][e] *= factor * slope_factor;
    });
  }
  if (rule.softcap != 0.0f) {
    const float inverse = 1.0f / rule.softcap;
    for_each_element<N>([&](int n, int e) {
      const float t = tanhf(s[n][e] * inverse);
      s[n][e] = rule.softcap * t;
      if (slope) (*slope)[n][e] *= 1.0f - t * t;
    });
  }
  if (rule.relative_table) {
    for_each_element<N>([&](int n, int e) { s[n][e] += head.table_value(place.query(n, e), place.key(n, e)); });
  }
  if (rule.alibi_slopes) {
    for_each_element<N>([&](int n, int e) { s[n][e] += head.alibi_value(place.query(n, e), place.key(n, e)); });
  }
  if (!rule.bias) return;
  switch (rule.bias.dtype) {
    case DType::bf16: return add_bias<__nv_bfloat16, N, kRows>(s, head, place, in_range);
    case DType::f16: return add_bias<__half, N, kRows>(s, head, place, in_range);
    default: return add_bias<float, N, kRows>(s, head, place, in_range);
  }
}

// Scores to logits, in place, the derivative by the scaled score in slope where given; -inf where a mask drops the key,
// whatever the score was. `ranges_keep` says that the whole tile lies inside the ranges of causal, window and length.
template <int N, Rows kRows>
__device__ void to_logits(WarpTile<N>& s, WarpTile<N>* slope, const HeadRule& head, TilePlace<kRows> place,
                          bool ranges_keep) {
  const LogitRule& rule = head.rule;
  for_each_element<N>([&](int n, int e) {
    s[n][e] *= rule.scale;
    if (slope) (*slope)[n][e] = 1.0f;
  });
  TileBits kept = kAllBits;
  if (!ranges_keep) {
    kept = bits_where<N>([&](int n, int e) { return head.in_range(place.query(n, e), place.key(n, e)); });
  }
  if (!head.plain) {
    apply_features<N, kRows>(s, slope, head, place, kept);
    if (rule.mask) {
      kept = bits_where<N>(
          [&](int n, int e) { return has_bit(kept, n, e) && head.mask_keeps(place.query(n, e), place.key(n, e)); });
    }
    if (rule.block_mask) {
      kept = bits_where<N>([&](int n, int e) {
        return has_bit(kept, n, e) && head.block_mask_keeps(place.query(n, e), place.key(n, e));
      });
    }
  }
  if (kept == kAllBits) return;
  for_each_element<N>([&](int n, int e) {
    if (!has_bit(kept, n, e)) s[n][e] = -INFINITY;
  });
}

// Which elements dropout keeps: all where there is none.
template <int N, Rows kRows>
__device__ TileBits dropout_keeps(const HeadRule& head, TilePlace<kRows> place) {
  const DropoutBits& dropout = head.rule.dropout;
  if (!dropout.active()) return kAllBits;
  std::uint32_t word = 0;
  return bits_where<N>([&](int n, int e) {
    const auto i = static_cast<std::uint32_t>(place.query(n, e)), j = static_cast<std::uint32_t>(place.key(n, e));
    // Neighbouring columns are neighbouring keys where queries are the rows: two keys, one word.
    if (kRows == Rows::keys || e % 2 == 0) word = dropout.word(head.sequence.index, head.head, i, j);
    return dropout.keeps(word, j);
  });
}

}  // namespace rootdk::cuda::portable
