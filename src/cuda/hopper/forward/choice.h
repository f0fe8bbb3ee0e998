#pragma once

// Checks and choice of the forward pass: from the call alone, never from the state of the machine.

#include <cstddef>
#include <string>

#include "core/attention_call.h"
#include "cuda/hopper/forward/config.h"

namespace rootdk::cuda::hopper {

// Why Hopper's kernels (forward and decode) cannot run the call; empty: they can.
std::string forward_refusal(const ForwardCall& call);

struct ForwardChoice {
  Variant variant = Variant::ranged;
  ForwardKernelHandle kernel;
  bool counts_tiles = false;  // tiles differ in length: blocks take them from a counter in the workspace

  std::size_t workspace_bytes() const { return counts_tiles ? sizeof(int) : 0; }
};

// The call must not have been refused.
ForwardChoice choose_forward(const ForwardCall& call);

}  // namespace rootdk::cuda::hopper
