#pragma once

#include "cuda/hopper/forward/config.h"

namespace rootdk::cuda::hopper {

// The kernel of a head_dim and a variant: ranged or sampled. Each head_dim is compiled in one file, which CMake writes
// from fp8_instance.cu.in.
template <int HeadDim>
ForwardKernelHandle fp8_kernel_of(Variant variant);

}  // namespace rootdk::cuda::hopper
