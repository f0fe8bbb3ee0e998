#pragma once

// Tiles of rows in shared memory, and the layout of a warp's results in registers.

#include "cuda/portable/arguments.h"
#include "cuda/portable/ptx.h"

namespace rootdk::cuda::portable {

// How many warps a block has and how many rows stream past it. Sized so that head_dim and value_dim 256 fit into the
// 99 KiB of shared memory that the smallest sm_80 class device (sm_86) has.
template <class Compute>
struct TileShape {
  static constexpr int kWarps = sizeof(Compute) == 2 ? 4 : 2;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kOwned = 16 * kWarps;                      // rows that stay
  static constexpr int kStream = sizeof(Compute) == 2 ? 32 : 16;  // rows that stream past, backward
};
// The same for kernels that have `Columns` of a gradient in registers: narrow ones have room for more.
template <class Compute, int Columns>
inline constexpr int kBackwardStream = sizeof(Compute) == 2 && Columns <= 64 ? 64 : TileShape<Compute>::kStream;
// Keys that stream past a block of the forward pass, which has `Columns` of the output in registers.
template <class Compute, int Columns>
inline constexpr int kForwardStream = sizeof(Compute) == 2 && Columns <= 128 ? 64 : 32;

__host__ __device__ constexpr int round_up(int value, int multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// The depth of one multiplication step; tiles are padded with zeros up to a multiple of it.
inline constexpr int kDepthStep = 16;

// Distance between rows of a tile, in elements. The 16 bytes of padding put the eight rows that one matrix load touches
// into different banks.
template <class Compute>
__host__ __device__ constexpr int pitch_of(int padded_columns) {
  return padded_columns + 16 / static_cast<int>(sizeof(Compute));
}

// A warp's tile [16 x 8 N] in registers, as the tensor cores leave it: element e of column group n lies at
//   row    lane / 4 + 8 (e / 2)
//   column 8 n + 2 (lane % 4) + e % 2
template <int N>
using WarpTile = float[N][4];

__device__ inline int lane_index() { return static_cast<int>(threadIdx.x) % 32; }
__device__ inline int warp_index() { return static_cast<int>(threadIdx.x) / 32; }
__device__ inline int fragment_row(int e) { return lane_index() / 4 + 8 * (e / 2); }
__device__ inline int fragment_column(int n, int e) { return 8 * n + 2 * (lane_index() % 4) + e % 2; }

template <int N>
__device__ void clear(WarpTile<N>& tile) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) tile[n][e] = 0.0f;
  }
}

// The four lanes that share a row combine what they hold.
__device__ inline float row_sum(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}
__device__ inline float row_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

// The part of a matrix that a tile shows: rows from `first_row` of one head, columns from `first_column`. Rows from
// `valid_rows` on, and columns past the matrix, read as zero whatever the memory holds.
struct TileSource {
  const Matrix& matrix;
  int entry = 0, head = 0;
  int first_row = 0, valid_rows = 0;
  int first_column = 0;
};

// Starts filling tile [rows x padded_columns]. Complete after copy_async_wait and __syncthreads.
template <class Compute>
__device__ void load_tile(Compute* tile, int pitch, int rows, int padded_columns, const TileSource& from) {
  const Matrix& matrix = from.matrix;
  const std::int64_t origin = matrix.offset(from.entry, from.head, from.first_row) + from.first_column;
  const int columns = matrix.columns - from.first_column;
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  if (matrix.vectors) {
    constexpr int kVector = 16 / static_cast<int>(sizeof(Compute));
    const Compute* source = static_cast<const Compute*>(matrix.data);
    const int vectors = padded_columns / kVector, rows_at_once = threads / vectors;
    const int column = thread % vectors * kVector;
    if (thread >= rows_at_once * vectors) return;  // idle if the row length is not a power of two
    for (int row = thread / vectors; row < rows; row += rows_at_once) {
      const bool valid = row < from.valid_rows && column < columns;
      const Compute* address = valid ? source + origin + row * matrix.strides[2] + column : source;
      ptx::copy_async_16(tile + row * pitch + column, address, valid);
    }
    return;
  }
  for (int row = warp_index(); row < rows; row += threads / 32) {
    for (int column = lane_index(); column < padded_columns; column += 32) {
      const bool valid = row < from.valid_rows && column < columns;
      const std::int64_t offset = origin + row * matrix.strides[2] + column;
      if constexpr (sizeof(Compute) == 2) {
        tile[row * pitch + column] = valid ? static_cast<const Compute*>(matrix.data)[offset] : Compute(0.0f);
      } else {
        tile[row * pitch + column] = valid ? load_as_float(matrix.data, matrix.dtype, offset) : 0.0f;
      }
    }
  }
}

// The work of a block of a one-dimensional grid: parts of a tile vary fastest, then tiles, heads, sequences.
struct BlockWork {
  int sequence = 0, head = 0, tile = 0, part = 0;

  __device__ static BlockWork of(int heads, int tiles, int parts) {
    BlockWork work;
    std::int64_t index = blockIdx.x;
    work.part = static_cast<int>(index % parts);
    index /= parts;
    work.tile = static_cast<int>(index % tiles);
    index /= tiles;
    work.head = static_cast<int>(index % heads);
    work.sequence = static_cast<int>(index / heads);
    return work;
  }
};

}  // namespace rootdk::cuda::portable
