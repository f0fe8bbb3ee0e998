#pragma once

#include <cstdint>

// Thread block clusters: blocks that run at the same time and can load from each other's shared memory.
namespace rootdk::cuda::ptx {

__device__ __forceinline__ int cluster_rank() {
  std::uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}

// Waits for all threads of the cluster. What they wrote to shared memory is visible afterwards.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\n barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The address of another block's copy of a shared variable, from the address of this block's.
__device__ __forceinline__ std::uint32_t address_in_block(std::uint32_t own, int rank) {
  std::uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(own), "r"(rank));
  return address;
}
__device__ __forceinline__ float load_cluster_float(std::uint32_t address) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}
__device__ __forceinline__ float4 load_cluster_float4(std::uint32_t address) {
  float4 value;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

}  // namespace rootdk::cuda::ptx
