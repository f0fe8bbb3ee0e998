#pragma once

#include <cstdint>

// Asynchronous copies to shared memory, issued by ordinary threads.
namespace rootdk::cuda::ptx {

// Four bytes; zeros where `valid` is false.
__device__ __forceinline__ void copy_async_4(std::uint32_t destination, const void* source, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(destination), "l"(source), "r"(valid ? 4 : 0)
               : "memory");
}
// Sixteen bytes, of which the first `valid` are copied and the rest are zeros. Both addresses are multiples of 16.
__device__ __forceinline__ void copy_async_16(std::uint32_t destination, const void* source, int valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source), "r"(valid) : "memory");
}
// Arrives at the barrier once this thread's copies so far have landed.
__device__ __forceinline__ void copy_async_arrive(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void copy_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace rootdk::cuda::ptx
