#pragma once

// One checked kernel launch.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/launch/check.h"

namespace rootdk::cuda::portable {

struct Grid {
  std::int64_t blocks = 0;
  int threads = 0;
  int shared_bytes = 0;
  cudaStream_t stream = nullptr;
};

// Launches nothing where there are no blocks.
template <class Arguments>
void launch(void (*kernel)(Arguments), const char* name, const Grid& grid, const Arguments& arguments) {
  if (grid.blocks == 0) return;
  const void* function = reinterpret_cast<const void*>(kernel);
  constexpr int kAlwaysGranted = 48 * 1024;
  if (grid.shared_bytes > kAlwaysGranted) {
    check(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, grid.shared_bytes), "giving ",
          name, " ", grid.shared_bytes, " bytes of shared memory");
  }
  void* parameters[] = {const_cast<Arguments*>(&arguments)};
  check(cudaLaunchKernel(function, dim3(static_cast<unsigned>(grid.blocks)), dim3(static_cast<unsigned>(grid.threads)),
                         parameters, static_cast<std::size_t>(grid.shared_bytes), grid.stream),
        "launching ", name, " with ", grid.blocks, " blocks");
}

}  // namespace rootdk::cuda::portable
