#pragma once

// Decode: few queries against many keys. One description for host and device.

#include <cstdint>

#include "cuda/hopper/forward_config.h"

namespace rootdk::cuda::hopper {

// All query rows that share a key head, at most 64, form one tile. The work is bound by memory: what counts is bytes in
// flight, so that shared memory is a ring of key and value tiles, and smaller heads run two blocks a multiprocessor.
template <class Element_, int HeadDim>
struct DecodeConfig {
  using Element = Element_;
  static constexpr Tuning kTuning{.early_token = 0};
  static constexpr bool kRanged = true;
  static constexpr int kHeadDim = HeadDim;
  static constexpr int kBlockQ = 64;
  static constexpr int kBlockKv = 64;
  static constexpr int kStages = HeadDim == 64 ? 6 : HeadDim == 192 ? 4 : 3;
  static constexpr int kBlocksPerMultiprocessor = HeadDim <= 128 ? 2 : 1;
  static constexpr int kConsumerThreads = 128, kThreads = kConsumerThreads + 32;

  static constexpr int kPanels = (HeadDim + 63) / 64;
  static constexpr int kQPanelBytes = kBlockQ * 128, kKvPanelBytes = kBlockKv * 128;
  static constexpr int kQBytes = kPanels * kQPanelBytes, kKvBytes = kPanels * kKvPanelBytes;
};

template <class C>
struct DecodeStorage {
  alignas(kSharedAlignment) std::uint8_t q[C::kQBytes];
  alignas(kSharedAlignment) std::uint8_t k[C::kStages][C::kKvBytes];
  alignas(kSharedAlignment) std::uint8_t v[C::kStages][C::kKvBytes];
  std::uint64_t k_full[C::kStages], k_empty[C::kStages];
  std::uint64_t v_full[C::kStages], v_empty[C::kStages];
};

inline constexpr int kDecodeRows = 64;           // q_len times the heads of a group
inline constexpr int kDecodeMergeThreads = 256;  // eight rows a block

struct DecodeKernel {
  const void* function = nullptr;  // void(ForwardMaps, ForwardParams)
  const void* merge = nullptr;     // void(ForwardParams)
  int block_kv = 0;
  int blocks_per_multiprocessor = 0;
  int threads = 0;
  int shared_bytes = 0;
};

}  // namespace rootdk::cuda::hopper
