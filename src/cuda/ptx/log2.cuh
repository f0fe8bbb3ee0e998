#pragma once

namespace rootdk::cuda::ptx {

// log2(x), absolute error 2^-22 near 1; -inf for 0 and below the smallest normal number.
__device__ __forceinline__ float log2_approximate(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace rootdk::cuda::ptx
