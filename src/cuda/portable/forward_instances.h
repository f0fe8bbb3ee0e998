#pragma once

// Included by one file for each element type, so that they compile side by side.

#include "cuda/portable/forward_kernel.h"
#include "cuda/portable/forward_kernels.h"

namespace rootdk::cuda::portable {

template <class Compute, int Columns, bool Additive>
ForwardKernelHandle forward_kernel_of(const LogitRule& rule) {
  using Shape = TileShape<Compute>;
  return {.function = forward_kernel<Compute, Columns, Additive>,
          .columns = Columns,
          .rows = Shape::kOwned,
          .threads = Shape::kThreads,
          .shared_bytes = ForwardShared<Compute, Columns>(rule.head_dim).bytes(Additive ? rule.head_dim : 0)};
}

// Values wider than the widest kernel are computed in parts.
template <class Compute, bool Additive>
ForwardKernelHandle forward_kernel_for(const LogitRule& rule) {
  if (Additive || rule.value_dim <= 64) return forward_kernel_of<Compute, 64, Additive>(rule);
  if constexpr (!Additive) {
    if (sizeof(Compute) == 4 || rule.value_dim <= 128) return forward_kernel_of<Compute, 128, false>(rule);
    if constexpr (sizeof(Compute) == 2) return forward_kernel_of<Compute, 256, false>(rule);
  }
  return {};
}

}  // namespace rootdk::cuda::portable
