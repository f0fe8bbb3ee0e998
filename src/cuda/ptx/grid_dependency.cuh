#pragma once

// Programmatic dependent launch: a kernel may start before the previous one on the stream has ended. Devices before
// sm_90 always start it afterwards; there these functions do nothing.
namespace rootdk::cuda::ptx {

// Lets the next kernel start.
__device__ __forceinline__ void allow_next_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Returns once the previous kernel has ended and its writes are visible; at once if there is none to wait for.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace rootdk::cuda::ptx
