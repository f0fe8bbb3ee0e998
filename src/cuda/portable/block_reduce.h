#pragma once

// Sums over warps and blocks in a fixed order, for the kernels that run over whole rows.

#include "cuda/portable/tile.h"

namespace rootdk::cuda::portable {

inline constexpr int kRowThreads = 128;
inline constexpr int kReduceSharedBytes = kRowThreads / 32 * static_cast<int>(sizeof(float));

__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) value += __shfl_xor_sync(0xffffffffu, value, lanes);
  return value;
}

// The sum over a block of kRowThreads; every thread gets it. Takes kReduceSharedBytes of dynamic shared memory.
__device__ inline float block_sum(float value) {
  extern __shared__ __align__(16) unsigned char shared_memory[];
  float* const scratch = reinterpret_cast<float*>(shared_memory);
  value = warp_sum(value);
  if (lane_index() == 0) scratch[warp_index()] = value;
  __syncthreads();
  float sum = 0.0f;
  for (int warp = 0; warp < kRowThreads / 32; ++warp) sum += scratch[warp];
  __syncthreads();
  return sum;
}

}  // namespace rootdk::cuda::portable
