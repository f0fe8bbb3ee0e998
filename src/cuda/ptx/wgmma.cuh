#pragma once

#include <cstdint>

#include "cuda/ptx/wgmma_products.cuh"

namespace rootdk::cuda::ptx {

// Before the first product that reads or writes registers which ordinary instructions touched.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Returns when at most Pending of the committed groups are still in flight. It must be in the same basic block as the
// products, or ptxas serialises them all (warning C7514).
template <int Pending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

// The compiler does not know that products finish asynchronously. Pin their results after the wait, so that no
// arithmetic on them is moved above it.
template <int N>
__device__ __forceinline__ void pin(float (&registers)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}
template <int N>
__device__ __forceinline__ void pin(std::uint32_t (&registers)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}

// A matrix in shared memory under the 128-byte swizzle; its base is aligned to 1024 bytes. In units of 16 bytes: bits
// 0-13 the address, 16-29 the leading offset, 32-45 the stride offset; bits 62-63 name the swizzle.
enum class Swizzle : std::uint32_t { bytes128 = 1, bytes64 = 2, bytes32 = 3 };
template <Swizzle Kind = Swizzle::bytes128>
__device__ __forceinline__ std::uint64_t matrix_descriptor(std::uint32_t address, std::uint32_t leading_bytes,
                                                           std::uint32_t stride_bytes) {
  const std::uint32_t low = ((address & 0x3FFFFu) >> 4) | ((leading_bytes >> 4) << 16);
  const std::uint32_t high = (stride_bytes >> 4) | (static_cast<std::uint32_t>(Kind) << 30);
  return (static_cast<std::uint64_t>(high) << 32) | low;
}
// Moves the address; never carries out of the low word.
__device__ __forceinline__ std::uint64_t advance(std::uint64_t descriptor, std::uint32_t bytes) {
  const std::uint32_t low = static_cast<std::uint32_t>(descriptor) + (bytes >> 4);
  return (descriptor & 0xFFFFFFFF00000000ull) | low;
}

}  // namespace rootdk::cuda::ptx
