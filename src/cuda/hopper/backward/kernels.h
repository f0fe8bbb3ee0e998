#pragma once

// The backward kernels by element type and head_dim. Each pair is compiled in one file, which CMake writes
// from instance.cu.in.

#include <array>

#include "cuda/hopper/backward/config.h"
#include "rootdk/dtype.h"

namespace rootdk::cuda::hopper {

inline constexpr std::array<int, 4> kBackwardHeadDims = {64, 128, 192, 256};

// Wider heads have plain and rich kernels only.
constexpr bool has_all_variants(int head_dim) { return head_dim <= 128; }

// Element: BFloat16 or Float16.
template <class Element, int HeadDim>
BackwardKernel backward_kernel_of(BackwardVariant variant);

}  // namespace rootdk::cuda::hopper
