#pragma once

// The forward kernels by element type and head_dim. Each pair is compiled in two files, which CMake writes from
// ../tensor_kernels.cu.in and instance.cu.in.

#include <cstddef>

#include "cuda/hopper/forward/config.h"
#include "rootdk/dtype.h"

namespace rootdk::cuda::hopper {

// Which variants are built. The others fall back: full to ranged, full_sampled to sampled, brief to ranged,
// brief_sampled to sampled, and the rest to rich. A variant with entropy and sum_p2 is built wherever the one without
// them is, so that asking for them changes no bit of the output; softcap and ALiBi are the exception.
constexpr bool is_built(int head_dim, Variant variant) {
  switch (variant) {
    case Variant::full:
    case Variant::full_sampled: return head_dim == 128;
    case Variant::brief:
    case Variant::brief_sampled: return head_dim != 128;
    case Variant::softcap:
    case Variant::alibi: return head_dim == 64 || head_dim == 128;
    default: return true;
  }
}

// Element: BFloat16 or Float16. The variant must be built.
template <class Element, int HeadDim>
ForwardKernelHandle forward_kernel_of(Variant variant);

// The kernel for few keys with shape `index` of kShortShapes<HeadDim> (short_config.h).
template <class Element, int HeadDim>
ForwardKernelHandle short_kernel_of(std::size_t index);

// The kernel with query tiles of two heights (mixed_config.h), for this head_dim alone.
inline constexpr int kMixedHeadDim = 64;
template <class Element>
ForwardKernelHandle mixed_kernel_of();

}  // namespace rootdk::cuda::hopper
