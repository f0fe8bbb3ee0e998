#pragma once

// Checks and choice of the Hopper path: from the call alone, never from the state of the machine.

#include <cstddef>
#include <optional>
#include <string>

#include "core/attention_call.h"
#include "cuda/hopper/decode/choice.h"
#include "cuda/hopper/forward/config.h"

namespace rootdk::cuda::hopper {

// Why this path cannot run the call; empty: it can.
std::string forward_refusal(const ForwardCall& call);

struct ForwardChoice {
  int head_dim = 0;                    // of the kernel: head_dim and value_dim are padded up to it
  std::optional<DecodeChoice> decode;  // given: few queries, the rest is not looked at
  Variant variant = Variant::ranged;
  ForwardKernel kernel;
  bool counts_tiles = false;  // tiles differ in length: blocks take them from a counter in the workspace

  std::size_t workspace_bytes() const { return decode ? decode->workspace_bytes() : counts_tiles ? sizeof(int) : 0; }
};

// The call must not have been refused.
ForwardChoice choose_forward(const ForwardCall& call);

}  // namespace rootdk::cuda::hopper
