#pragma once

#include <cuda_runtime_api.h>

namespace rootdk::cuda::hopper {

// Clears the counter by a kernel that lets the next one start at once: that one waits for it only when it first counts.
void clear_tile_counter(int* counter, cudaStream_t stream, int device);

}  // namespace rootdk::cuda::hopper
