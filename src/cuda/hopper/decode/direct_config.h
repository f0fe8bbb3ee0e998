#pragma once

// Decode of one query over tensors with narrow heads, for calls that are over sooner than a ring of tiles pays.
// Constants and structs that host and device share.

#include <vector_types.h>

#include "cuda/hopper/decode/config.h"

namespace rootdk::cuda::hopper {

inline constexpr int kDirectHeadDim = 64;      // at most; wider heads take the ring of tiles, which is as fast there
inline constexpr int kDirectRows = 8;          // of a key head, at most: the columns of a product
inline constexpr int kMostClusterBlocks = 16;  // of a cluster

// A warp loads slices of sixteen keys and values straight into the registers that are operands of its products: no
// shared memory, no barrier, and as many bytes on their way as registers hold.
template <class Element_>
struct DirectConfig {
  using Element = Element_;
  static constexpr int kHeadDim = kDirectHeadDim;
  static constexpr int kSlices = 2;  // of a warp at once
  static constexpr int kWarps = 6, kBlocksPerMultiprocessor = 2;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kWarpKeys = 16 * kSlices;
  static constexpr int kBlockKeys = kWarps * kWarpKeys;

  static constexpr int kKeyVectors = kHeadDim / 32;    // of eight columns, of a thread and one of its two keys
  static constexpr int kOutputBlocks = kHeadDim / 16;  // products of a slice, each with sixteen columns of v
};

template <class C>
struct DirectStorage {
  float out[C::kWarps][kDirectRows][C::kHeadDim];  // unnormalised
  float4 sums[C::kWarps][kDirectRows];             // RowSums
  float block_out[kDirectRows][C::kHeadDim];       // of all warps
  float4 block_sums[kDirectRows];
  DecodePart part;  // here, to save registers
};

struct DirectKernel {
  const void* function = nullptr;  // void(ForwardParams)
  int block_keys = 0;              // of one round of loads
  int threads = 0;
};

}  // namespace rootdk::cuda::hopper
