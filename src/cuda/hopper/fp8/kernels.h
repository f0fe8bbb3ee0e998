#pragma once

#include "cuda/hopper/forward/config.h"

namespace rootdk::cuda::hopper {

// The kernel of a head_dim and a variant: ranged or sampled. Rows of at most kFp8TilesOfSum key tiles are short. Each
// head_dim is compiled in one file, which CMake writes from instance.cu.in.
template <int HeadDim>
ForwardKernelHandle fp8_kernel_of(Variant variant, bool long_rows);

// The keys of a tile, which share a scale.
int fp8_keys_of_scale(int head_dim);

}  // namespace rootdk::cuda::hopper
