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

// Loads 16 bytes past L1, which are used once. Volatile, so that loads are issued in source order: ptxas
// would delay each load until its use, to save registers.
__device__ __forceinline__ uint4 load_once(const void* pointer) {
  uint4 value;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(pointer));
  return value;
}

}  // namespace rootdk::cuda::ptx
