#pragma once

// Attention computed in e4m3: q, k and v are prepared, then the forward kernel runs on e4m3 products.

#include <cstddef>
#include <string>

#include "core/attention_call.h"
#include "cuda/hopper/forward/config.h"
#include "cuda/hopper/forward/fp8_prepare.h"

namespace rootdk::cuda::hopper {

struct Fp8Choice {
  ForwardKernelHandle kernel;
  Fp8Workspace workspace;
  std::size_t workspace_bytes() const { return workspace.bytes; }
};

// Why the e4m3 kernels cannot run a call that forward_refusal() accepts; empty: they can.
std::string fp8_refusal(const ForwardCall& call);
Fp8Choice choose_fp8(const ForwardCall& call);
void launch_fp8(const ForwardCall& call, const Fp8Choice& choice);

// Variant: ranged or sampled.
template <int HeadDim>
ForwardKernelHandle fp8_kernel_of(Variant variant);

}  // namespace rootdk::cuda::hopper
