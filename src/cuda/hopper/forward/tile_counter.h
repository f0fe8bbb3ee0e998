#pragma once

#include <cuda_runtime_api.h>

namespace rootdk::cuda::hopper {

// Clears the counter with a small kernel. The next kernel may start at once (programmatic dependent launch); it waits
// for this one before its first use of the counter.
void clear_tile_counter(int* counter, cudaStream_t stream, int device);

}  // namespace rootdk::cuda::hopper
