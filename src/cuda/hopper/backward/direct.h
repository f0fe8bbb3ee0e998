#pragma once

// Gradients where very few rows share a key head: one kernel without tensor cores, in which memory is all that counts.

#include "core/attention_call.h"
#include "cuda/hopper/backward/params.h"

namespace rootdk::cuda::hopper {

struct DirectBackward {
  const void* function = nullptr;  // void(BackwardParams, DirectSplit); null: the call takes the other kernels
  int threads = 0;
  int splits = 1;  // blocks that share a key head: a cluster
  int part_keys = 0;
};

// The keys of one block, of `splits` that share a key head.
struct DirectSplit {
  int splits = 1, part_keys = 0;
};

// For plain logits and at most four rows a key head; in a call that has not been refused.
DirectBackward choose_direct_backward(const BackwardCall& call);

void launch_direct_backward(const BackwardCall& call, const DirectBackward& choice, const BackwardParams& params);

}  // namespace rootdk::cuda::hopper
