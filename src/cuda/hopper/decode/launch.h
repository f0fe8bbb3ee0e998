#pragma once

#include "cuda/hopper/decode/choice.h"

namespace rootdk::cuda::hopper {

// Decode over the tensors of a call of attention(); attend.cpp launches decode over a cache.
void launch_decode(const ForwardCall& call, const DecodeChoice& choice);

}  // namespace rootdk::cuda::hopper
