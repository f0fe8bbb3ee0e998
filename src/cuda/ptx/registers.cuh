#pragma once

namespace rootdk::cuda::ptx {

// Moves registers between the warpgroups of a block. The sum over all warps must not exceed what the block was launched
// with (the kernel's own register count times its threads): asking for more hangs.
template <int Count>
__device__ __forceinline__ void registers_grow_to() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
}
template <int Count>
__device__ __forceinline__ void registers_shrink_to() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
}

}  // namespace rootdk::cuda::ptx
