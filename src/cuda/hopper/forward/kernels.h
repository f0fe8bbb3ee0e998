#pragma once

// The kernels by element type and head_dim. Each pair is compiled in a file of its own, which CMake writes from
// instance.cu.in.

#include <array>

#include "cuda/hopper/decode/byte_config.h"
#include "cuda/hopper/decode/config.h"
#include "cuda/hopper/forward/config.h"
#include "rootdk/dtype.h"

namespace rootdk::cuda::hopper {

inline constexpr std::array<int, 5> kHeadDims = {64, 96, 128, 192, 256};

// Which variants are built: the others fall back, those of full and of short rows to ranged ones and the rest to rich.
constexpr bool is_built(int head_dim, Variant variant) {
  switch (variant) {
    case Variant::full:
    case Variant::full_sampled: return head_dim == 128;
    case Variant::brief: return head_dim == 96 || head_dim == 192 || head_dim == 256;
    case Variant::sampled:
    case Variant::softcap:
    case Variant::alibi: return head_dim == 64 || head_dim == 128;
    default: return true;
  }
}

// Element: BFloat16 or Float16. The variant must be built.
template <class Element, int HeadDim>
ForwardKernel forward_kernel_of(Variant variant);
template <class Element, int HeadDim>
DecodeKernel tensor_decode_kernel();

// Decode over the pages of a cache. Padding costs no bandwidth, so that there are fewer head_dims.
inline constexpr std::array<int, 3> kPagedHeadDims = {64, 128, 256};
template <class Element, int HeadDim>
DecodeKernel paged_decode_kernel();
template <class Element, int HeadDim>
DecodeKernel byte_decode_kernel_of(ByteType stored, bool many_rows);

}  // namespace rootdk::cuda::hopper
