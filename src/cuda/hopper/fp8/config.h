#pragma once

// The forward kernels in e4m3: their tile shapes and shared memory. The kernel is that of the 16-bit types
// (kernel.cuh); q, k and v arrive as prepare.h leaves them.

#include <cuda_fp8.h>

#include <cstdint>

#include "cuda/hopper/forward/config.h"
#include "cuda/hopper/shared/fp8_layout.h"
#include "cuda/ptx/wgmma.cuh"

namespace rootdk::cuda::hopper {

// Output, scores and packed weights take head_dim / 2 + 5 block_kv / 8 registers. Shared memory holds q_stages query
// tiles and kv_stages tiles each of k and v.
struct Fp8Shape {
  TileShape tile;
  int kv_stages = 2;
  bool takes_turns = true;  // at the tensor cores; without turns a consumer issues its products when it is ready
};
constexpr Fp8Shape fp8_shape(int head_dim) {
  constexpr Tuning kInTurns{.max_chains = 4, .integer_max = true};
  constexpr Tuning kFree{
      .rescale_under_qk = true, .order_after_max = true, .max_chains = 4, .early_token = 0, .integer_max = true};
  switch (head_dim) {
    case 64: return {{128, 3, 2, kInTurns}, 4};
    case 96: return {{192, 2, 2, kFree}, 3, false};
    case 128: return {{192, 2, 2, kFree}, 3, false};
    case 192: return {{128, 2, 2, kFree}, 2, false};
    default: return {{96, 2, 2, kInTurns}, 2};
  }
}

template <int HeadDim, Variant Which, bool LongRows>
struct Fp8Config {
  using Element = __nv_fp8_e4m3;
  static constexpr TileShape kShape = fp8_shape(HeadDim).tile;
  static constexpr Tuning kTuning = kShape.tuning;
  static constexpr Variant kVariant = Which;
  static constexpr bool kFp8 = true;
  static constexpr bool kLongRows = LongRows;  // sums of P V in two levels
  static constexpr bool kTurns = fp8_shape(HeadDim).takes_turns;
  static constexpr bool kRich = false;
  static constexpr Terms kTerms = Terms::none;
  static constexpr bool kLogits = false;
  static constexpr bool kRanged = true;
  static constexpr bool kSampled = Which == Variant::sampled;

  static constexpr int kHeadDim = HeadDim;
  static constexpr int kBlockKv = kShape.block_kv;
  static constexpr int kConsumers = kShape.consumers;
  static constexpr int kBlockQ = 64 * kConsumers;
  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kQStages = kShape.q_stages;
  static constexpr int kStages = fp8_shape(HeadDim).kv_stages;
  static constexpr int kTileBuffers = kQStages == 1 ? 3 : 2 * kQStages;
  static constexpr bool kStagedOutput = false;  // two bytes an element do not fit where the queries were
  // The output is staged beside them, 64 columns a panel; wide heads in two rounds.
  static constexpr int kOutputPanels = HeadDim > 128 ? 2 : (HeadDim + 63) / 64;
  static constexpr int kOutputBytes = kBlockQ * kOutputPanels * 128;

  static constexpr int kPanelColumns = 128;
  static constexpr int kPanels = (HeadDim + kPanelColumns - 1) / kPanelColumns;
  static constexpr int kQPanelBytes = kBlockQ * 128, kKvPanelBytes = kBlockKv * 128;
  static constexpr int kQBytes = kPanels * kQPanelBytes, kKvBytes = kPanels * kKvPanelBytes;
  static constexpr int kVBytes = kBlockKv * HeadDim;  // [column][key], in panels of 64 or 32 keys
  static constexpr int kVPanelKeys = kBlockKv % 64 == 0 ? 64 : 32;
  static constexpr ptx::Swizzle kVSwizzle = kVPanelKeys == 64 ? ptx::Swizzle::bytes64 : ptx::Swizzle::bytes32;
  static constexpr int kWeightRegisters = kBlockKv / 8;

  static constexpr int kProducerRegisters = kConsumers == 2 ? 40 : 32;
  static constexpr int kConsumerRegisters = kConsumers == 2 ? 232 : 160;
};

}  // namespace rootdk::cuda::hopper
