#pragma once

// The results of a query tile of the e4m3 kernels: row values, and the output in bf16 or f16.

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

// How the output is staged: panels of 64 columns, in each the 16 rows of a warp.
template <class C, class Output>
struct Fp8Staging {
  using Element = Output;
  static constexpr int kPanels = C::kOutputPanels, kHeadDim = 64 * kPanels, kQPanelBytes = 16 * 128;
  static constexpr bool kRanged = true;
};

// Sends kHeadDim columns of a warp's 16 rows from `FirstColumn` on. `factor` turns sums of weights times values into
// the output, `mass` is what a row's weights sum to: less than 1 with a sink.
template <class C, class Output, int FirstColumn>
__device__ __forceinline__ void send_fp8_columns(const ForwardParams& p, const ForwardMaps& maps, const WorkTile& tile,
                                                 int warp_row, const float (&o)[C::kHeadDim / 2],
                                                 const float (&factor)[2], const float (&mass)[2],
                                                 const float (&v_columns)[2 * C::kHeadDim], std::uint32_t staging) {
  using Staging = Fp8Staging<C, Output>;
  std::uint32_t pairs[2][Staging::kHeadDim / 8];
#pragma unroll
  for (int i = 0; i < Staging::kHeadDim / 8; ++i) {
    const int at = FirstColumn / 8 + i, column = 8 * at + 2 * (threadIdx.x & 3);
    if (8 * at >= C::kHeadDim) {
      pairs[0][i] = pairs[1][i] = 0;
      continue;
    }
    const float2 scale = *reinterpret_cast<const float2*>(&v_columns[column]);
    const float2 mean = *reinterpret_cast<const float2*>(&v_columns[C::kHeadDim + column]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      pairs[r][i] = ptx::pack<Output>(fmaf(o[4 * at + 2 * r] * factor[r], scale.x, mass[r] * mean.x),
                                      fmaf(o[4 * at + 2 * r + 1] * factor[r], scale.y, mass[r] * mean.y));
    }
  }
  if ((threadIdx.x & 31) == 0) ptx::bulk_wait_read();  // what was sent from here before
  __syncwarp();
  stage_output<Staging>(staging, pairs);
  send_output<Staging>(staging, maps, p, tile, tile.q0 + warp_row, query_end<C>(tile), FirstColumn);
}

// `row` is the thread's first row inside the tile, `units` what Fp8Scales has of it and of the rows after it.
template <class C>
__device__ __forceinline__ void store_fp8_tile(const ForwardParams& p, const ForwardMaps& maps, const WorkTile& tile,
                                               int row, const RowState& state, bool sampled,
                                               const float (&o)[C::kHeadDim / 2], const float2* units,
                                               const float (&v_columns)[2 * C::kHeadDim], std::uint32_t staging) {
  const int batch = p.q_starts.data ? 0 : tile.sequence;
  const int rows_end = query_end<C>(tile);
  RowResult results[2];
  float mass[2], factor[2];
  bool exists[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    exists[r] = tile.q0 + row + 8 * r < rows_end;
    const RowSums sums = fp8_row_sums<C>(state, r, units[8 * r].y);
    results[r] = p.sinks.data ? row_result(sums, sink_of(p, tile.head)) : row_result(sums);
    mass[r] = results[r].factor * sums.l;
    factor[r] = results[r].factor * (1.f / 256.f);
  }
  store_row_values<C>(p, batch, tile.head, tile.q_begin + tile.q0 + row, results, exists, sampled);
  // The same in all threads, and ptxas sees it: else it takes the warp for divided from here on, and keeps addresses
  // out of uniform registers.
  const int warp_row = __shfl_sync(0xffffffffu, row, 0);
  const auto send = [&]<class Output>() {
    send_fp8_columns<C, Output, 0>(p, maps, tile, warp_row, o, factor, mass, v_columns, staging);
    if constexpr (C::kHeadDim > 64 * C::kOutputPanels) {
      send_fp8_columns<C, Output, 64 * C::kOutputPanels>(p, maps, tile, warp_row, o, factor, mass, v_columns, staging);
    }
  };
  if (p.fp8.out_f16) {
    send.template operator()<__half>();
  } else {
    send.template operator()<__nv_bfloat16>();
  }
}

}  // namespace rootdk::cuda::hopper
