#pragma once

// When a call is decode, and into how many parts its keys are split: from the shape alone, so that the bits do not
// depend on the machine or on what else runs.

#include <cstddef>
#include <optional>

#include "core/attention_call.h"
#include "cuda/hopper/decode_config.h"

namespace rootdk::cuda::hopper {

struct DecodeChoice {
  DecodeKernel kernel;
  int splits = 1;
  int split_tiles = 0;  // key tiles of a part
  std::int64_t rows = 0, value_dim = 0;

  std::size_t sums_bytes() const { return static_cast<std::size_t>(splits * rows) * 4 * sizeof(float); }
  std::size_t workspace_bytes() const {
    if (splits == 1) return 0;
    return sums_bytes() + static_cast<std::size_t>(splits * rows * value_dim) * sizeof(float);
  }
};

// Nothing where the call is not decode. head_dim: of the kernel.
std::optional<DecodeChoice> choose_decode(const ForwardCall& call, int head_dim);

void launch_decode(const ForwardCall& call, const DecodeChoice& choice);

}  // namespace rootdk::cuda::hopper
