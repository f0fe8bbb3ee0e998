#pragma once

#include <cuda_runtime_api.h>

namespace rootdk::cuda {

struct KernelLaunch {
  const void* function = nullptr;
  const char* name = "";  // for messages
  dim3 grid, block;
  int shared_bytes = 0;  // dynamic
  cudaStream_t stream = nullptr;
  int device = 0;
  int cluster = 1;            // blocks of a thread block cluster, at most 16; divides the grid
  bool all_resident = false;  // all blocks run at the same time (a cooperative launch), or the launch fails
  bool starts_early = false;  // may start before the previous kernel has ended (ptx/grid_dependency.cuh)
};

// Launches a kernel whose parameters have exactly the given types; throws if that fails.
void launch_with_arguments(const KernelLaunch& launch, void** arguments);

template <class... Parameters>
void launch_kernel(const KernelLaunch& launch, const Parameters&... parameters) {
  void* arguments[] = {const_cast<void*>(static_cast<const void*>(&parameters))...};
  launch_with_arguments(launch, arguments);
}

}  // namespace rootdk::cuda
