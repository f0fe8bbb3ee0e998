#pragma once

// How a query tile's results get to memory: row values by plain stores; the output by the copy engine, staged in the
// shared memory of the tile's queries, or by plain stores if the next queries need that memory at once.

#include <cmath>
#include <cstdint>

#include "cuda/hopper/forward/config.h"
#include "cuda/hopper/shared/logit_terms.cuh"
#include "cuda/hopper/shared/row_results.cuh"
#include "cuda/ptx/address.cuh"
#include "cuda/ptx/bulk_copy.cuh"
#include "cuda/ptx/fence.cuh"
#include "cuda/ptx/stmatrix.cuh"
#include "cuda/ptx/tma.cuh"

namespace rootdk::cuda::hopper {

// Stores the statistics of a thread's two rows; `row` is the first, counted inside the tensor. All four threads of a
// row have its results: each stores one of them.
template <class C>
__device__ __forceinline__ void store_row_values(const ForwardParams& p, int batch, int head, int row,
                                                 const RowResult (&results)[2], const bool (&exists)[2], bool sampled) {
  constexpr bool kMoments = C::kSampled || C::kRich;
  const auto store = [&](const DeviceTensor& tensor, const auto& value_of) {
    if (!tensor.data) return;
    float* at = static_cast<float*>(tensor.data) + batch * tensor.batch_stride + head * tensor.head_stride +
                row * tensor.row_stride;
    if (exists[0]) *at = value_of(results[0]);
    if (exists[1]) at[8 * tensor.row_stride] = value_of(results[1]);
  };
  const int quad = threadIdx.x & 3;
  store(p.row_values[quad], [&](const RowResult& result) {
    const float last = kMoments && sampled ? result.entropy : NAN;
    return quad == kLse         ? result.lse
           : quad == kMaxLogit  ? result.max_logit
           : quad == kMaxWeight ? result.max_weight
                                : last;
  });
  if constexpr (kMoments) {
    if (quad == 0) store(p.row_values[kSumP2], [&](const RowResult& r) { return sampled ? r.sum_p2 : NAN; });
  }
}

// Writes a warp's 16 output rows (pairs[r] is row 8 r + lane / 4) over its rows of a query tile: panels of 64 columns
// under the 128-byte swizzle.
template <class C>
__device__ __forceinline__ void stage_output(std::uint32_t rows, const std::uint32_t (&pairs)[2][C::kHeadDim / 8]) {
  const int lane = threadIdx.x & 31;
  const std::uint32_t row = rows + (lane & 15) * 128;
#pragma unroll
  for (int i = 0; i < C::kHeadDim / 8; i += 2) {  // 16 bytes of a row each; lanes 16 and up store the second
    const int vector = (i % 8 + lane / 16) ^ (lane & 7);
    ptx::stmatrix_x4(row + (i / 8) * C::kQPanelBytes + 16 * vector, pairs[0][i], pairs[1][i], pairs[0][i + 1],
                     pairs[1][i + 1]);
  }
}

// Sends a warp's staged rows [first_row, rows_end) of the sequence, at most 16, columns from first_column on. The copy
// engine skips rows past the end of the tensor, but cannot skip rows of another tile or of the next packed sequence:
// then plain stores do it.
template <class C>
__device__ __forceinline__ void send_output(std::uint32_t rows, const ForwardMaps& maps, const ForwardParams& p,
                                            const WorkTile& tile, int first_row, int rows_end, int first_column = 0) {
  const int lane = threadIdx.x & 31;
  ptx::fence_async_shared();
  __syncwarp();
  const bool packed = C::kRanged && p.q_starts.data;
  const int count = rows_end - first_row;
  if (!C::kRanged || count >= 16 || (!packed && rows_end == tile.q_len)) {
    if (lane == 0) {
#pragma unroll
      for (int panel = 0; panel < C::kPanels; ++panel) {
        ptx::tma_store_4d(&maps.out, rows + panel * C::kQPanelBytes, first_column + 64 * panel,
                          tile.q_begin + first_row, tile.head, packed ? 0 : tile.sequence);
      }
      ptx::bulk_commit();
    }
  } else {
    const int vectors = max(0, min(p.value_dim - first_column, C::kHeadDim)) / 8;
    using Element = typename C::Element;
#pragma unroll 1
    for (int at = lane; at < count * vectors; at += 32) {
      const int row = at / vectors, column = at - row * vectors;
      const int4 part =
          ptx::load_shared_int4(rows + (column / 8) * C::kQPanelBytes + row * 128 + 16 * ((column % 8) ^ (row % 8)));
      *reinterpret_cast<int4*>(output_row<Element>(p, 0, tile.head, tile.q_begin + first_row + row) + first_column +
                               8 * column) = part;
    }
    __syncwarp();
  }
}

// Stores one row with plain stores. The quad exchanges its parts first, so that every thread stores 16 contiguous
// bytes, eight of each 32 columns.
template <class C, class Output>
__device__ __forceinline__ void store_output_row(const std::uint32_t (&pairs)[C::kHeadDim / 8], bool exists,
                                                 Output* row, const ForwardParams& p) {
  const int quad = threadIdx.x & 3;
#pragma unroll
  for (int group = 0; group < C::kHeadDim / 32; ++group) {
    std::uint32_t columns[4] = {pairs[4 * group], pairs[4 * group + 1], pairs[4 * group + 2], pairs[4 * group + 3]};
    quad_transpose(columns, quad);
    const int column = 32 * group + 8 * quad;
    if (exists && column < p.value_dim) {
      *reinterpret_cast<uint4*>(row + column) = make_uint4(columns[0], columns[1], columns[2], columns[3]);
    }
  }
}

}  // namespace rootdk::cuda::hopper
