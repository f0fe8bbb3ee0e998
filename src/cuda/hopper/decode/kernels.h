#pragma once

// The decode kernels by element type and head_dim. Each pair is compiled in one file, which CMake writes from
// instance.cu.in.

#include <array>

#include "cuda/hopper/decode/byte_config.h"
#include "cuda/hopper/decode/config.h"
#include "cuda/hopper/decode/direct_config.h"
#include "rootdk/dtype.h"

namespace rootdk::cuda::hopper {

// Element: BFloat16 or Float16. Over tensors, for the head_dims of forward.
template <class Element, int HeadDim>
DecodeKernel tensor_decode_kernel();

// Over the pages of a cache. Padding costs no bandwidth there, so that there are fewer head_dims.
inline constexpr std::array<int, 3> kCacheHeadDims = {64, 128, 256};

template <class Element, int HeadDim>
DecodeKernel cache_decode_kernel();
template <class Element, int HeadDim>
DecodeKernel byte_decode_kernel_of(ByteType stored, bool many_rows);

// Of one query over tensors.
template <class Element>
DirectKernel direct_decode_kernel_of();

}  // namespace rootdk::cuda::hopper
