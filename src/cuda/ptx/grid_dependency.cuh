#pragma once

// Programmatic dependent launch: a kernel may start before the one in front of it on the stream has ended.
namespace rootdk::cuda::ptx {

// Lets the next kernel start.
__device__ __forceinline__ void allow_next_kernel() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
// Returns once the kernel in front has ended and its writes can be seen; at once where there is none to wait for.
__device__ __forceinline__ void wait_for_previous_kernel() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

}  // namespace rootdk::cuda::ptx
