#pragma once

namespace rootdk::cuda::ptx {

__device__ __forceinline__ int load_acquire(const int* pointer) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(pointer) : "memory");
  return value;
}
__device__ __forceinline__ void store_release(int* pointer, int value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(pointer), "r"(value) : "memory");
}

}  // namespace rootdk::cuda::ptx
