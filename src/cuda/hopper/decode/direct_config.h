#pragma once

// Decode of very few rows over tensors, for calls that are over sooner than a ring of tiles is filled. Constants and
// structs that host and device share.

#include <vector_types.h>

#include "cuda/hopper/decode/config.h"

namespace rootdk::cuda::hopper {

inline constexpr int kDirectRows = 2;         // of a key head, at most: queries times heads of a group
inline constexpr int kMostClusterBlocks = 8;  // of a cluster: clusters of 16 do not all run at the same time

// A warp loads `kLoads` vectors of keys and of values at once, straight into registers: the kLanes threads of a team
// share a row, eight columns each. Teams keep separate sums, which are merged at the end.
template <class Element_, int HeadDim, int Rows>
struct DirectConfig {
  using Element = Element_;
  static constexpr int kHeadDim = HeadDim;
  static constexpr int kRows = Rows;
  static constexpr int kColumns = 8;  // of a thread
  static constexpr int kLanes = HeadDim / kColumns;
  static constexpr int kKeys = 32 / kLanes;  // of one load of a warp
  static constexpr int kLoads = Rows == 1 ? 8 : 4;
  // Two blocks fit on a multiprocessor: clusters of blocks that need one each do not all run at the same time.
  static constexpr int kWarps = 8, kBlocksPerMultiprocessor = 2;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kWarpKeys = kLoads * kKeys;
  static constexpr int kBlockKeys = kWarps * kWarpKeys;
};

template <class C>
struct DirectStorage {
  float out[C::kWarps][C::kRows][C::kHeadDim];  // unnormalised
  float4 sums[C::kWarps][C::kRows];             // RowSums
  float block_out[C::kRows][C::kHeadDim];       // of all warps
  float4 block_sums[C::kRows];
  DecodePart part;  // here, to save registers
};

struct DirectKernel {
  const void* function = nullptr;  // void(ForwardParams)
  int rows = 0;                    // that it has registers for
  int block_keys = 0;              // of one round of loads
  int threads = 0;
};

}  // namespace rootdk::cuda::hopper
