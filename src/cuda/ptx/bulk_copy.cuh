#pragma once

#include <cstdint>

// Contiguous copies by the copy engine; addresses and sizes are multiples of 16 bytes.
namespace rootdk::cuda::ptx {

__device__ __forceinline__ void bulk_load(std::uint32_t destination, const void* source, std::uint32_t bytes,
                                          std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(destination),
      "l"(source), "r"(bytes), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void bulk_store(void* destination, std::uint32_t source, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(destination), "r"(source), "r"(bytes)
               : "memory");
}
// destination += source, f32, performed in L2.
__device__ __forceinline__ void bulk_add_f32(void* destination, std::uint32_t source, std::uint32_t bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(destination),
               "r"(source), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Returns once the sources of all committed copies have been read and may be overwritten.
__device__ __forceinline__ void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void bulk_wait_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

}  // namespace rootdk::cuda::ptx
