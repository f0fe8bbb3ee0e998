#pragma once

// When a call of attention() is decode, and into how many parts its keys are split: from the shape alone, so that the
// bits do not depend on the machine or on what else runs.

#include <cstddef>
#include <cstdint>

#include "core/attention_call.h"
#include "cuda/hopper/decode/config.h"
#include "cuda/hopper/decode/direct_config.h"
#include "cuda/hopper/decode/partials.h"

namespace rootdk::cuda::hopper {

struct DecodeChoice {
  DecodeKernel kernel;
  DirectKernel direct;  // runs instead, if it has a function
  int splits = 1;
  int split_tiles = 0;   // key tiles of a part
  bool repairs = false;  // a row may not see what its tile sees (repair.cuh)
  std::int64_t rows = 0, value_dim = 0;

  bool is_direct() const { return direct.function != nullptr; }
  bool merges() const { return !is_direct() && (splits > 1 || repairs); }
  std::size_t workspace_bytes() const { return merges() ? partials_bytes(splits, rows, value_dim) : 0; }
};

// Few queries against keys of one length, in a call that has not been refused; several queries over few keys of many
// heads are not.
bool is_decode(const ForwardCall& call);

// The call must be decode.
DecodeChoice choose_decode(const ForwardCall& call);

// Constants of the time estimates. Filling the ring of a block costs as much as this many key tiles:
inline constexpr double kStartTiles = 3;
inline constexpr std::int64_t kMultiprocessors = 132;  // of a full Hopper: a constant, so that choices depend on shapes

inline std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace rootdk::cuda::hopper
