#pragma once

namespace rootdk::cuda::ptx {

// Makes ordinary stores to shared memory visible to the tensor cores and the copy engine.
__device__ __forceinline__ void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// The same for all memory.
__device__ __forceinline__ void fence_async_all() { asm volatile("fence.proxy.async;" ::: "memory"); }

}  // namespace rootdk::cuda::ptx
