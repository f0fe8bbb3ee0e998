#pragma once

// Checks and choice of the Hopper backward pass: from the call alone, never from the state of the machine.

#include <string>

#include "core/attention_call.h"
#include "cuda/hopper/backward/config.h"
#include "cuda/hopper/backward/direct.h"

namespace rootdk::cuda::hopper {

// Why this path cannot compute the gradients of q, k and v; empty: it can.
std::string backward_refusal(const BackwardCall& call);

struct BackwardChoice {
  int head_dim = 0;  // of the kernel: head_dim and value_dim are padded up to it
  BackwardVariant variant = BackwardVariant::plain;
  bool grad_entropy = false;  // the entropy has an upstream gradient
  BackwardKernel kernel;
  TileGrid queries, keys;
  int heads_together = 1, query_heads_together = 1;
  AddOrder order;
  DirectBackward direct;  // runs instead, if it has a function
};

// The call must not have been refused.
BackwardChoice choose_backward(const BackwardCall& call);

}  // namespace rootdk::cuda::hopper
