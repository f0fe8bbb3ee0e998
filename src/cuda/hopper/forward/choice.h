#pragma once

// Checks and choice of the forward pass: from the call alone, never from the state of the machine.

#include <cstddef>
#include <string>

#include "core/attention_call.h"
#include "cuda/hopper/forward/config.h"
#include "cuda/hopper/forward/short_config.h"
#include "cuda/hopper/forward/tall_tiles.h"

namespace rootdk::cuda::hopper {

// Why Hopper's kernels (forward and decode) cannot run the call; empty: they can.
std::string forward_refusal(const ForwardCall& call);

struct ForwardChoice {
  ForwardKernelHandle kernel = {};
  bool counts_tiles = false;    // tiles differ in length: blocks take them from a counter in the workspace
  ShortShape short_shape = {};  // of the kernel for few keys, and the rows of its query tiles; 0: another kernel
  int short_rows = 0;
  TileHeights heights = {};  // of the kernel with tiles of two heights; empty: another kernel

  std::size_t workspace_bytes() const { return counts_tiles ? sizeof(int) : 0; }
};

// The call must not have been refused.
ForwardChoice choose_forward(const ForwardCall& call);

}  // namespace rootdk::cuda::hopper
