#pragma once

// Included by one file for each element type, so that they compile side by side.

#include <algorithm>

#include "cuda/portable/backward_kernels.h"
#include "cuda/portable/backward_keys_kernel.h"
#include "cuda/portable/backward_queries_kernel.h"
#include "cuda/portable/tile_sum_kernel.h"

namespace rootdk::cuda::portable {

template <class Compute, int kStream>
int backward_shared_bytes(const BackwardArguments& args) {
  return BackwardShared<Compute, kStream>(args).bytes();
}

template <class Compute, int Columns>
BackwardKernel backward_kernel_of(void (*function)(BackwardArguments), int head_columns, int value_columns) {
  using Shape = TileShape<Compute>;
  return {.function = function,
          .columns = Columns,
          .head_columns = head_columns,
          .value_columns = value_columns,
          .rows = Shape::kOwned,
          .threads = Shape::kThreads,
          .shared_bytes = backward_shared_bytes<Compute, kBackwardStream<Compute, Columns>>};
}

// Both gradients have the same number of columns in a block; wider ones are computed in parts.
template <class Compute, bool Additive>
BackwardKernel keys_kernel_for(const LogitRule& rule) {
  if constexpr (sizeof(Compute) == 2) {
    if (std::max(rule.head_dim, rule.value_dim) > 64) {
      return backward_kernel_of<Compute, 128>(backward_keys_kernel<Compute, 128, Additive>,
                                              round_up(rule.head_dim, 128), round_up(rule.value_dim, 128));
    }
  }
  return backward_kernel_of<Compute, 64>(backward_keys_kernel<Compute, 64, Additive>, round_up(rule.head_dim, 64),
                                         round_up(rule.value_dim, 64));
}

template <class Compute, bool Additive>
BackwardKernel queries_kernel_for(const LogitRule& rule) {
  const int value_columns = round_up(rule.value_dim, kDepthStep);
  if constexpr (sizeof(Compute) == 2) {
    if (rule.head_dim > 64) {
      return backward_kernel_of<Compute, 128>(backward_queries_kernel<Compute, 128, Additive>,
                                              round_up(rule.head_dim, 128), value_columns);
    }
  }
  return backward_kernel_of<Compute, 64>(backward_queries_kernel<Compute, 64, Additive>, round_up(rule.head_dim, 64),
                                         value_columns);
}

// The tiles, or the sum that takes their place at the end.
template <class Compute>
int tile_sum_shared_bytes(const BackwardArguments& args) {
  using Shape = TileShape<Compute>;
  const int sum_bytes = Shape::kOwned * (Shape::kStream + 1) * static_cast<int>(sizeof(float));
  return std::max(backward_shared_bytes<Compute, Shape::kStream>(args), sum_bytes);
}

template <class Compute, bool Additive>
TileSumKernel tile_sum_kernel_for(const LogitRule& rule) {
  using Shape = TileShape<Compute>;
  using Distances = DistanceLayout<Compute>;
  return {.function = tile_sum_kernel<Compute, Additive>,
          .head_columns = round_up(rule.head_dim, kDepthStep),
          .value_columns = round_up(rule.value_dim, kDepthStep),
          .rows = Shape::kOwned,
          .keys = Shape::kStream,
          .diagonals = Distances::kDiagonals,
          .threads = Shape::kThreads,
          .shared_bytes = tile_sum_shared_bytes<Compute>,
          .offsets = Distances::offsets};
}

}  // namespace rootdk::cuda::portable
