#pragma once

// The backward kernels by element type and head_dim. Each pair is compiled in a file of its own, which CMake writes
// from backward_instance.cu.in.

#include <array>

#include "cuda/hopper/backward_config.h"
#include "rootdk/dtype.h"

namespace rootdk::cuda::hopper {

inline constexpr std::array<int, 2> kBackwardHeadDims = {64, 128};

// Element: BFloat16 or Float16.
template <class Element, int HeadDim>
BackwardKernel backward_kernel_of(BackwardVariant variant);

}  // namespace rootdk::cuda::hopper
