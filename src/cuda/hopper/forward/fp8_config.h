#pragma once

// The forward kernels in e4m3: their tile shapes and shared memory. The kernel is that of the 16-bit types (kernel.cuh);
// q, k and v arrive as fp8_prepare.h leaves them.

#include <cuda_fp8.h>

#include <cstdint>

#include "cuda/hopper/forward/config.h"
#include "cuda/hopper/shared/fp8_layout.h"
#include "cuda/ptx/wgmma.cuh"

namespace rootdk::cuda::hopper {

#ifndef FP8_N
#define FP8_N 0
#endif
#ifndef FP8_PLACE
#define FP8_PLACE 0
#endif
#ifndef FP8_C
#define FP8_C 2
#endif
#ifndef FP8_Q
#define FP8_Q 2
#endif
#ifndef FP8_TUNE
#define FP8_TUNE 0
#endif
#ifndef FP8_STAGES
#define FP8_STAGES 2
#endif
#ifndef FP8_TWO
#define FP8_TWO 0
#endif
#ifndef FP8_TURNS
#define FP8_TURNS 1
#endif
#ifndef FP8_POLY
#define FP8_POLY 0
#endif
// Output, the tile's P V, scores and packed weights take head_dim + 5 block_kv / 8 registers with sums in two levels.
constexpr TileShape fp8_tile_shape(int head_dim) {
  constexpr Tuning kPlain{.order_after_max = true, .max_chains = 4, .early_token = 0, .integer_max = true};
  constexpr Tuning kOne{.max_chains = 4, .integer_max = true};
  constexpr Tuning kTwo{.rescale_under_qk = true, .order_after_max = true, .max_chains = 4, .early_token = 0, .integer_max = true};
  constexpr Tuning kThree{.rescale_under_qk = true, .max_chains = 4, .early_token = 0, .integer_max = true};
  constexpr Tuning kTune = FP8_TUNE == 0 ? kPlain : FP8_TUNE == 1 ? kOne : FP8_TUNE == 2 ? kTwo : FP8_TUNE == 3 ? kThree : FP8_TUNE == 4 ? Tuning{} : Tuning{.rescale_under_qk = true, .order_after_max = true};
  switch (head_dim) {
    case 64: return {FP8_N ? FP8_N : 128, FP8_C, FP8_Q, kTune};
    case 96: return {128, 2, 3, kPlain};
    case 128: return {FP8_N ? FP8_N : 128, FP8_C, FP8_Q, kTune};
    case 192: return {128, 2, 2, kPlain};
    default: return {FP8_N ? FP8_N : 128, FP8_C, FP8_Q, kTune};
  }
}

template <int HeadDim, Variant Which>
struct Fp8Config {
  using Element = __nv_fp8_e4m3;
  static constexpr TileShape kShape = fp8_tile_shape(HeadDim);
  static constexpr Tuning kTuning = kShape.tuning;
  static constexpr Variant kVariant = Which;
  static constexpr bool kFp8 = true;
  static constexpr bool kTurns = FP8_TURNS;
  static constexpr int kPoly = FP8_POLY;
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
  static constexpr int kStages = FP8_STAGES;
  static constexpr int kTileBuffers = kQStages == 1 ? 3 : 2 * kQStages;
  static constexpr bool kStagedOutput = false;  // two bytes an element do not fit where the queries were

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
