#include "cuda/hopper/forward/tile_counter.h"
#include "cuda/launch/kernel.h"
#include "cuda/ptx/grid_dependency.cuh"

namespace rootdk::cuda::hopper {
namespace {

__global__ void clear_kernel(int* counter) {
  ptx::allow_next_kernel();
  *counter = 0;
}

}  // namespace

void clear_tile_counter(int* counter, cudaStream_t stream, int device) {
  launch_kernel({.function = reinterpret_cast<const void*>(&clear_kernel),
                 .name = "the clearing of the tile counter",
                 .grid = dim3(1),
                 .block = dim3(1),
                 .stream = stream,
                 .device = device},
                counter);
}

}  // namespace rootdk::cuda::hopper
