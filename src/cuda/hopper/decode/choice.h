#pragma once

// When a call is decode, and into how many parts its keys are split: from the shape alone, so that the bits do not
// depend on the machine or on what else runs.

#include <cstddef>
#include <optional>

#include "core/attention_call.h"
#include "cuda/hopper/decode/config.h"

namespace rootdk::cuda::hopper {

// Memory for the sums and outputs of parts: sums first. One part needs none.
std::size_t partials_bytes(std::int64_t parts, std::int64_t rows, std::int64_t value_dim);
void place_partials(ForwardParams& params, void* memory, std::int64_t rows);

struct DecodeChoice {
  DecodeKernel kernel;
  int splits = 1;
  int split_tiles = 0;  // key tiles of a part
  std::int64_t rows = 0, value_dim = 0;

  std::size_t workspace_bytes() const { return partials_bytes(splits, rows, value_dim); }
};

// In units of the time of one key tile: filling the ring of a block.
inline constexpr double kStartTiles = 3;
inline constexpr std::int64_t kMultiprocessors = 132;  // of a full Hopper: a constant, so that choices depend on shapes

// Nothing where the call is not decode. head_dim: of the kernel.
std::optional<DecodeChoice> choose_decode(const ForwardCall& call, int head_dim);

void launch_decode(const ForwardCall& call, const DecodeChoice& choice);

}  // namespace rootdk::cuda::hopper
