#pragma once

// The choice among the forward kernels, from the sizes alone.

#include "cuda/portable/arguments.h"

namespace rootdk::cuda::portable {

struct ForwardKernelHandle {
  void (*function)(ForwardArguments) = nullptr;
  int columns = 0;  // of the output that a block has in registers
  int rows = 0;     // queries of a block
  int threads = 0, shared_bytes = 0;
};

// Instantiated in forward_bf16.cu, forward_f16.cu and forward_f32.cu.
template <class Compute, bool Additive>
ForwardKernelHandle forward_kernel_for(const LogitRule& rule);

}  // namespace rootdk::cuda::portable
