#pragma once

// The results of a query tile of the e4m3 kernels: row values and the output in bf16 or f16, by plain stores.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/hopper/forward/output.cuh"
#include "cuda/hopper/shared/fp8_layout.h"
#include "cuda/hopper/shared/row_results.cuh"
#include "cuda/hopper/shared/work_tiles.cuh"

namespace rootdk::cuda::hopper {

// The sums of a row, whose weights were multiplied by 2^kFp8WeightBits. `shift` is what the mean key adds to its
// logits.
template <class C>
__device__ __forceinline__ RowSums fp8_row_sums(const RowState& state, int r, float shift) {
  constexpr float kUndo = 1.f / 256.f;
  static_assert(kFp8WeightBits == 8.f);
  const float l = quad_sum(state.l[r]) * kUndo;
  return {.m = state.m[r] + shift,
          .l = l,
          .a = C::kSampled ? fmaf(quad_sum(state.a[r]), kUndo, -kFp8WeightBits * l) : 0.f,
          .b = C::kSampled ? quad_sum(state.b[r]) * (kUndo * kUndo) : 0.f};
}

// `factor` turns sums of weights times values into the output, `mass` is what the row's weights sum to: less than 1
// with a sink. `columns` has the scales of v from the thread's first column on, then, kHeadDim later, the mean of v.
template <class C, class Output>
__device__ __forceinline__ void store_fp8_row(const float (&o)[C::kHeadDim / 2], int r, float factor, float mass,
                                              const float* columns, bool exists, Output* row, const ForwardParams& p) {
  std::uint32_t pairs[C::kHeadDim / 8];
#pragma unroll
  for (int i = 0; i < C::kHeadDim / 8; ++i) {
    const float2 scale = *reinterpret_cast<const float2*>(columns + 8 * i);
    const float2 mean = *reinterpret_cast<const float2*>(columns + C::kHeadDim + 8 * i);
    pairs[i] = ptx::pack<Output>(fmaf(o[4 * i + 2 * r] * factor, scale.x, mass * mean.x),
                                 fmaf(o[4 * i + 2 * r + 1] * factor, scale.y, mass * mean.y));
  }
  store_output_row<C>(pairs, exists, row, p);
}

// `row` is the thread's first row inside the tile; `shift` is what the mean key adds to the logits of its rows.
template <class C>
__device__ __forceinline__ void store_fp8_tile(const ForwardParams& p, const WorkTile& tile, int row,
                                               const RowState& state, const float (&shift)[2], bool sampled,
                                               const float (&o)[C::kHeadDim / 2],
                                               const float (&v_columns)[2 * C::kHeadDim]) {
  const int batch = p.q_starts.data ? 0 : tile.sequence;
  const int rows_end = query_end<C>(tile);
  RowResult results[2];
  float mass[2];
  bool exists[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    exists[r] = tile.q0 + row + 8 * r < rows_end;
    const RowSums sums = fp8_row_sums<C>(state, r, shift[r]);
    results[r] = p.sinks.data ? row_result(sums, sink_of(p, tile.head)) : row_result(sums);
    mass[r] = results[r].factor * sums.l;
  }
  store_row_values<C>(p, batch, tile.head, tile.q_begin + tile.q0 + row, results, exists, sampled);

  const float* const columns = v_columns + 2 * (threadIdx.x & 3);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float factor = results[r].factor * (1.f / 256.f);
    const int at = tile.q_begin + tile.q0 + row + 8 * r;
    if (p.fp8.out_f16) {
      store_fp8_row<C>(o, r, factor, mass[r], columns, exists[r], output_row<__half>(p, batch, tile.head, at), p);
    } else {
      store_fp8_row<C>(o, r, factor, mass[r], columns, exists[r], output_row<__nv_bfloat16>(p, batch, tile.head, at),
                       p);
    }
  }
}

}  // namespace rootdk::cuda::hopper
