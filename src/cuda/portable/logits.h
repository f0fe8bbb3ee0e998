#pragma once

// From a warp's tile of raw scores to its logits. Scale and the ranges of causal, window and length are inline; all
// other features are one function, so that kernels without them need none of its registers.

#include "cuda/portable/tile.h"

namespace rootdk::cuda::portable {

// Which queries and keys a warp's tile covers. Forward and the gradient of q have queries as rows; the gradients of k
// and v work on the transposed tile, keys as rows.
enum class Rows { queries, keys };

template <Rows kRows>
struct TileCorner {
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

// A warp's tile in memory. value: scaled scores, then logits. slope: the derivative of
// each logit by its scaled score.
template <int N>
struct FeatureTile {
  float value[4 * N];
  float slope[4 * N];
};

// Everything beyond scale and ranges: cosine norms, softcap, relative table, ALiBi, bias, masks.
template <int N, Rows kRows>
__device__ __noinline__ void apply_features(FeatureTile<N>& tile, HeadRule head, TileCorner<kRows> corner) {
  const LogitRule& rule = head.rule;
#pragma unroll 1
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int i = corner.query(n, e), j = corner.key(n, e);
      float x = tile.value[4 * n + e], slope = 1.0f;
      if (!head.keeps(i, j)) {
        x = -INFINITY;
      } else {
        if (rule.q_inverse_norm) {
          const float factor = head.norm_factor(i, j);
          x *= factor;
          slope = rule.head_dim == 1 ? 0.0f : factor;  // in one dimension the cosine is a sign: it has no gradient
        }
        if (rule.softcap != 0.0f) {
          const float t = tanhf(x / rule.softcap);
          x = rule.softcap * t;
          slope *= 1.0f - t * t;
        }
        if (rule.relative_table) x += head.table_value(i, j);
        if (rule.alibi_slopes) x += head.alibi_value(i, j);
        if (rule.bias) x += head.bias_value(i, j);
      }
      tile.value[4 * n + e] = x;
      tile.slope[4 * n + e] = slope;
    }
  }
}

// Scores to logits, in place; -inf where a mask drops the key, whatever the score was. `ranges_keep` says that the
// whole tile lies inside the ranges of causal, window and length. features.slope is filled where the head is not plain.
template <int N, Rows kRows>
__device__ void to_logits(WarpTile<N>& s, FeatureTile<N>& features, const HeadRule& head, TileCorner<kRows> corner,
                          bool ranges_keep) {
  for_each_element<N>([&](int n, int e) { s[n][e] *= head.rule.scale; });
  if (!head.plain) {
    for_each_element<N>([&](int n, int e) { features.value[4 * n + e] = s[n][e]; });
    apply_features<N, kRows>(features, head, corner);
    for_each_element<N>([&](int n, int e) { s[n][e] = features.value[4 * n + e]; });
  } else if (!ranges_keep) {
    for_each_element<N>([&](int n, int e) {
      if (!head.in_range(corner.query(n, e), corner.key(n, e))) s[n][e] = -INFINITY;
    });
  }
}

// One bit for each element of a warp's tile: element e of column group n has bit 4 n + e.
using TileBits = std::uint32_t;
__device__ inline bool has_bit(TileBits bits, int n, int e) { return (bits >> (4 * n + e) & 1u) != 0; }

// Draws the bits of a tile. Not inlined, because the generator is long; its arguments are in registers.
template <int N, Rows kRows>
__device__ __noinline__ TileBits draw_dropout(DropoutBits dropout, int sequence, int head, TileCorner<kRows> corner) {
  static_assert(4 * N <= 32);
  TileBits bits = 0;
  std::uint32_t word = 0;
#pragma unroll 1
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const auto i = static_cast<std::uint32_t>(corner.query(n, e)), j = static_cast<std::uint32_t>(corner.key(n, e));
      // Neighbouring columns are neighbouring keys where queries are the rows: two keys, one word.
      if (kRows == Rows::keys || e % 2 == 0) word = dropout.word(sequence, head, i, j);
      bits |= static_cast<TileBits>(dropout.keeps(word, j)) << (4 * n + e);
    }
  }
  return bits;
}

// Which elements dropout keeps: all where there is none.
template <int N, Rows kRows>
__device__ TileBits dropout_keeps(const HeadRule& head, TileCorner<kRows> corner) {
  if (!head.rule.dropout.active()) return ~TileBits{0};
  return draw_dropout<N, kRows>(head.rule.dropout, head.sequence.index, head.head, corner);
}

}  // namespace rootdk::cuda::portable
