#pragma once

namespace rootdk::cuda::ptx {

// Shared memory written by ordinary stores, before the tensor cores or the copy engine read it.
__device__ __forceinline__ void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// The same for all memory.
__device__ __forceinline__ void fence_async_all() { asm volatile("fence.proxy.async;" ::: "memory"); }

}  // namespace rootdk::cuda::ptx
