#pragma once

// Decode over pages of 8-bit numbers, each key and value with a scale of its own. One description for host and device.

#include <vector_types.h>

#include <cstdint>

#include "cuda/hopper/decode/config.h"

namespace rootdk::cuda::hopper {

enum class ByteType : std::int32_t { int8, e4m3 };

// Bytes go from shared memory to registers, become f16 there, which is exact, and meet the rows in mma.sync: nothing
// that was widened is written back. The products are s^T = k q^T and o^T = v^T weights^T, so that eight rows are enough
// to fill one. Each warp walks its own quarter of every key tile with sums of its own; warps meet at the end of a part.
// Tiles with more rows share what was widened; the bits of a row do not depend on it.
template <class Element_, ByteType Stored, int HeadDim, int RowGroups>
struct ByteDecodeConfig {
  using Element = Element_;  // of queries and output
  static constexpr ByteType kStored = Stored;
  static constexpr bool kCached = true;
  static constexpr int kHeadDim = HeadDim;
  static constexpr int kRowGroups = RowGroups;  // of eight
  static constexpr int kRows = 8 * RowGroups;
  static constexpr int kBlockKv = HeadDim == 256 ? 64 : 128;  // of a row: the same for any number of rows
  static constexpr int kBlocksPerMultiprocessor = 2;
  static constexpr int kStages = HeadDim == 64 ? 6 : 3;
  static constexpr bool kQueriesInRegisters = RowGroups == 1;

  static constexpr int kConsumerWarps = 4;
  static constexpr int kConsumerThreads = 32 * kConsumerWarps;
  static constexpr int kThreads = kConsumerThreads + 32;
  static constexpr int kWarpKeys = kBlockKv / kConsumerWarps;

  // A tile is stored as panels of 128 columns, or one of 64, under the copy engine's swizzle.
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
  uint2 q[C::kQueriesInRegisters ? 1 : C::kRowGroups * C::kScoreSteps][32];  // operands of every lane
  float4 out[C::kRowGroups * C::kOutputBlocks][33];  // where the warps add; padded against bank conflicts
  float4 sums[C::kConsumerWarps][C::kRows];          // RowSums of every warp
  std::uint64_t full[C::kStages], empty[C::kStages];
  DecodePart part;
};

}  // namespace rootdk::cuda::hopper
