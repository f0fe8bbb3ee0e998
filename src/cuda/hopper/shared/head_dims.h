#pragma once

// Kernels are built for a few head_dims; smaller heads are padded up to the next one with zeros by the copy engine.

#include <algorithm>
#include <array>
#include <cstdint>

namespace rootdk::cuda::hopper {

// Of forward, and of decode over tensors.
inline constexpr std::array<int, 5> kHeadDims = {64, 96, 128, 192, 256};

// The smallest head_dim of a kernel that holds both dimensions; 0: they are too large for every kernel.
template <std::size_t N>
int padded_dim(const std::array<int, N>& built, std::int64_t head_dim, std::int64_t value_dim) {
  const auto found = std::lower_bound(built.begin(), built.end(), std::max(head_dim, value_dim));
  return found == built.end() ? 0 : *found;
}

}  // namespace rootdk::cuda::hopper
