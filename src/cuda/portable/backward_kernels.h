#pragma once

// The choice among the backward kernels, from the sizes alone.

#include "cuda/portable/tile_sum.h"

namespace rootdk::cuda::portable {

struct BackwardKernel {
  void (*function)(BackwardArguments) = nullptr;
  int columns = 0;                          // of a gradient that a block has in registers
  int head_columns = 0, value_columns = 0;  // of its tiles in shared memory
  int rows = 0;                             // queries or keys of a block
  int threads = 0;
  int (*shared_bytes)(const BackwardArguments&) = nullptr;
};

struct TileSumKernel {
  void (*function)(TileSumArguments) = nullptr;
  int head_columns = 0, value_columns = 0;
  int rows = 0, keys = 0;  // of a tile
  int diagonals = 0;       // that a tile has
  int threads = 0;
  int (*shared_bytes)(const BackwardArguments&) = nullptr;
  int (*offsets)(int row_tiles, int key_tiles) = nullptr;
};

// Instantiated in backward_bf16.cu, backward_f16.cu and backward_f32.cu.
template <class Compute, bool Additive>
BackwardKernel keys_kernel_for(const LogitRule& rule);
template <class Compute, bool Additive>
BackwardKernel queries_kernel_for(const LogitRule& rule);
template <class Compute, bool Additive>
TileSumKernel tile_sum_kernel_for(const LogitRule& rule);

}  // namespace rootdk::cuda::portable
