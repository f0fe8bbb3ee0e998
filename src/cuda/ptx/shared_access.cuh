#pragma once

#include <cstdint>

// Shared memory by address, in the widths that address.cuh does not have.
namespace rootdk::cuda::ptx {

__device__ __forceinline__ float4 load_shared_float4(std::uint32_t address) {
  float4 value;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

// The low eight bits.
__device__ __forceinline__ void store_shared_byte(std::uint32_t address, std::uint32_t value) {
  asm volatile("st.shared.u8 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
__device__ __forceinline__ std::uint32_t load_shared_byte(std::uint32_t address) {
  std::uint32_t value;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

}  // namespace rootdk::cuda::ptx
