#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace rootdk::cuda::hopper {

// Launches bf16 products from shared memory on every multiprocessor of a Hopper device and returns how many
// floating-point operations they take.
double launch_product_peak(int device, void* workspace, int rounds, cudaStream_t stream);
std::size_t product_peak_workspace(int device);

}  // namespace rootdk::cuda::hopper
