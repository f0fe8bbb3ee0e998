#pragma once

// Vectors of eight 16-bit elements, as floats.

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/ptx/arithmetic.cuh"
#include "cuda/ptx/unpack.cuh"

namespace rootdk::cuda::hopper {

template <class Element>
__device__ __forceinline__ void unpack_vector(const uint4& vector, float (&x)[8]) {
  const std::uint32_t pairs[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = ptx::unpack<Element>(pairs[i]);
    x[2 * i] = pair.x;
    x[2 * i + 1] = pair.y;
  }
}

template <class Element>
__device__ __forceinline__ uint4 pack_vector(const float (&x)[8]) {
  return make_uint4(ptx::pack<Element>(x[0], x[1]), ptx::pack<Element>(x[2], x[3]), ptx::pack<Element>(x[4], x[5]),
                    ptx::pack<Element>(x[6], x[7]));
}

__device__ __forceinline__ float dot_of_eight(const float (&x)[8], const float (&y)[8]) {
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < 8; ++i) sum = fmaf(x[i], y[i], sum);
  return sum;
}

}  // namespace rootdk::cuda::hopper
