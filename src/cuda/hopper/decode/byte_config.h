#pragma once

// Decode over a cache of 8-bit numbers, where each key and value row has a scale. Constants and structs that host and
// device share.

#include <vector_types.h>

#include <cstdint>

#include "cuda/hopper/decode/config.h"

namespace rootdk::cuda::hopper {

enum class ByteType : std::int32_t { int8, e4m3 };

// Bytes are loaded from shared memory into registers, widened to f16, which is exact, and multiplied by mma.sync;
// widened numbers are never written back. The products are s^T = k q^T and o^T = v^T weights^T, so that eight rows fill
// one instruction. Each warp processes a quarter of every key tile and keeps separate sums; the warps merge them at the
// end of a part. Tiles with more rows use each widened number several times; the bits of a row do not depend on that.
template <class Element_, ByteType Stored, int HeadDim, int RowGroups>
struct ByteDecodeConfig {
  using Element = Element_;  // of queries and output
  static constexpr ByteType kStored = Stored;
  static constexpr bool kCached = true;
  static constexpr int kHeadDim = HeadDim;
  static constexpr int kRowGroups = RowGroups;  // of eight
  static constexpr int kRows = 8 * RowGroups;
  static constexpr int kBlockKv =
      HeadDim == 256 ? 64 : 128;  // the same for any number of rows, so that bits do not depend on it
  static constexpr int kBlocksPerMultiprocessor = 2;
  static constexpr int kStages = HeadDim == 64 ? 6 : 3;
  static constexpr bool kQueriesInRegisters = RowGroups == 1;

  static constexpr int kConsumerWarps = 4;
  static constexpr int kConsumerThreads = 32 * kConsumerWarps;
  static constexpr int kProducerWarps = 2;
  static constexpr int kThreads = kConsumerThreads + 32 * kProducerWarps;
  static constexpr int kWarpKeys = kBlockKv / kConsumerWarps;

  // A tile is stored as panels of 128 columns, or one panel of 64, under the copy engine's swizzle.
  static constexpr int kPanelColumns = HeadDim < 128 ? HeadDim : 128;
  static constexpr int kPanels = HeadDim / kPanelColumns;
  static constexpr int kPanelBytes = kBlockKv * kPanelColumns, kKvBytes = kPanels * kPanelBytes;

  static constexpr int kScoreSteps = HeadDim / 16;    // products that make a score
  static constexpr int kOutputBlocks = HeadDim / 16;  // of o^T: 16 columns of the output each

  static_assert(kWarpKeys % 16 == 0);
};

template <class C>
struct ByteDecodeStorage {
  alignas(kSharedAlignment) std::uint8_t k[C::kStages][C::kKvBytes];
  alignas(kSharedAlignment) std::uint8_t v[C::kStages][C::kKvBytes];
  alignas(16) float k_scales[C::kStages][C::kBlockKv];
  alignas(16) float v_scales[C::kStages][C::kBlockKv];
  uint2 q[C::kQueriesInRegisters ? 1 : C::kRowGroups * C::kScoreSteps][32];  // the operands of every lane
  float4 out[C::kRowGroups * C::kOutputBlocks][33];  // the sum over the warps; padded to avoid bank conflicts
  float4 sums[C::kConsumerWarps][C::kRows];          // RowSums of every warp, relative to its references
  float tops[C::kConsumerWarps][C::kRows];           // the largest logits of every warp
  std::uint64_t full[C::kStages], empty[C::kStages];
  DecodePart part;
};

}  // namespace rootdk::cuda::hopper
