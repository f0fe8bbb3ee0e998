#pragma once

// The products multiply weights of 0 with the values of masked keys, and 0 times infinity is NaN. If that may have
// happened, a row's output is computed again, key by key, over its unmasked keys. This is slow and very rare.

#include <cmath>
#include <cstdint>

#include "cuda/hopper/forward/config.h"
#include "cuda/hopper/shared/logit_terms.cuh"
#include "cuda/hopper/shared/work_tiles.cuh"
#include "cuda/ptx/arithmetic.cuh"

namespace rootdk::cuda::hopper {

// The logit of one key in units of log2. Uses the tile functions on a tile with one meaningful element.
template <class C>
__device__ __forceinline__ float single_logit(const ForwardParams& p, const WorkTile& tile, int row, int j,
                                              float score) {
  if constexpr (C::kLogits) {
    const int position = row + tile.kv_len - tile.q_len;
    const TileCoordinates at{.sequence = tile.sequence,
                             .head = {tile.head, tile.head},
                             .row = {row, row},
                             .position = {position, position},
                             .column = j,
                             .q_len = tile.q_len,
                             .kv_len = j + 1};
    float s[4] = {score, 0.f, 0.f, 0.f};
    scores_to_logits<typename C::Element, C::kTerms, Threads::single>(s, at, p);
    return s[0];
  } else {
    return score * p.scale_log2;
  }
}

// Whether dropout keeps this weight.
template <class C>
__device__ __forceinline__ bool keeps(const ForwardParams& p, const WorkTile& tile, int row, int j) {
  if (!C::kRich || p.terms.dropout_threshold == 0) return true;
  const auto word = [](int x) { return static_cast<std::uint32_t>(x); };
  const DropoutRule rule{p.terms.dropout_seed, p.terms.dropout_threshold, p.terms.dropout_keep_scale};
  return rule.keeps(word(tile.sequence), word(tile.head), word(row), word(j));
}

struct BrokenRow {
  int batch, row;  // row counted inside the sequence
  float m;         // the largest logit in units of log2
};

// Recomputes the thread's part of row r of the unnormalised output o: columns 8 i + column and 8 i + column + 1.
template <class C>
__device__ __forceinline__ void repair_row(const ForwardParams& p, const WorkTile& tile, const BrokenRow& broken, int r,
                                           int column, float (&o)[C::kHeadDim / 2]) {
  using Element = typename C::Element;
#pragma unroll
  for (int i = 0; i < C::kHeadDim / 8; ++i) o[4 * i + 2 * r] = o[4 * i + 2 * r + 1] = 0.f;
  const int kv_head = tile.head / p.group;
  const auto vector_of = [&](const DeviceTensor& tensor, int head, int at) {
    return static_cast<const Element*>(tensor.data) + broken.batch * tensor.batch_stride + head * tensor.head_stride +
           at * tensor.row_stride;
  };
  const Element* q = vector_of(p.q, tile.head, tile.q_begin + broken.row);
  const KeyRange keys = key_range<C>(tile, p, broken.row);
#pragma unroll 1
  for (int j = keys.begin; j < keys.end; ++j) {
    const Element* k = vector_of(p.k, kv_head, tile.kv_begin + j);
    float score = 0.f;
#pragma unroll 1
    for (int d = 0; d < p.head_dim; ++d) score = fmaf(static_cast<float>(q[d]), static_cast<float>(k[d]), score);
    const float logit = single_logit<C>(p, tile, broken.row, j, score);
    if (logit == -INFINITY || !keeps<C>(p, tile, broken.row, j)) continue;
    const float weight = ptx::exp2_approximate(logit - broken.m);
    const Element* v = vector_of(p.v, kv_head, tile.kv_begin + j) + column;
#pragma unroll
    for (int i = 0; i < C::kHeadDim / 8; ++i) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& sum = o[4 * i + 2 * r + e];
        if (8 * i + column + e < p.value_dim) sum = fmaf(weight, static_cast<float>(v[8 * i + e]), sum);
      }
    }
  }
}

}  // namespace rootdk::cuda::hopper
