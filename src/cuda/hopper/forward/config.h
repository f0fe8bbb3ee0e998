#pragma once

// Which forward kernels exist, their tile shapes and their shared memory: one description for host and device.

#include <vector_types.h>

#include <cstdint>

#include "cuda/hopper/shared/tile_config.h"

namespace rootdk::cuda::hopper {

// The variants of the one kernel. All support grouped heads, sinks, lse, max_logit and max_weight.
enum class Variant : std::int32_t {
  full,           // every row sees every key: mask code in the last key tile only
  full_sampled,   // full, with entropy and sum_p2 of the sampled query tiles
  ranged,         // each row sees a range of keys: causal, window, key lengths, packed sequences
  brief,          // ranged, with a tile shape for short rows, or for few
  sampled,        // ranged, with entropy and sum_p2 of the sampled query tiles
  brief_sampled,  // brief, with entropy and sum_p2 of the sampled query tiles
  softcap,        // ranged, with a softcap
  alibi,          // ranged, with ALiBi and no key to the right of its query
  rich,           // everything else, decided at run time: biases, masks, dropout, any scale, statistics
};

struct TileShape {
  int block_kv = 0;   // keys of a tile
  int consumers = 0;  // warpgroups of 64 query rows each
  int q_stages = 0;   // query tiles in shared memory; 1: the next tile loads after the last product with this one
  Tuning tuning;
};

// Three consumers have 160 registers each, two have 232; output, scores and packed weights take
// head_dim / 2 + 3 block_kv / 4 of them. Shared memory holds q_stages query tiles and two tiles each of k and v.
constexpr TileShape tile_shape(int head_dim, Variant variant) {
  const bool rich = variant == Variant::rich, brief = variant == Variant::brief || variant == Variant::brief_sampled;
  constexpr Tuning kOrdered{.order_after_max = true, .max_chains = 4, .early_token = 0};
  constexpr Tuning kPlain{.order_after_max = true, .max_chains = 4, .early_token = 0, .integer_max = true};
  constexpr Tuning kLoaded{.rescale_under_qk = true, .order_after_max = true};
  constexpr Tuning kLoadedPlain{.rescale_under_qk = true, .order_after_max = true, .integer_max = true};
  constexpr Tuning kNarrow{.max_chains = 4, .integer_max = true};
  constexpr Tuning kShort{.integer_max = true};
  switch (head_dim) {
    case 64:
      if (rich) return {128, 2, 3, {}};
      if (brief) return {128, 2, 3, kShort};
      return {128, 3, 3, variant == Variant::ranged || variant == Variant::sampled ? kNarrow : kOrdered};
    case 96:
      if (rich || brief) return {128, 2, 3, brief ? kShort : Tuning{}};
      return {112, 3, 1, kOrdered};
    case 128:
      if (rich) return {128, 2, 3, {}};
      if (variant == Variant::alibi) return {128, 2, 3, kLoaded};
      return {128, 2, 3, variant == Variant::full_sampled ? kLoadedPlain : kPlain};
    case 192:
      if (rich) return {96, 2, 1, {}};
      return brief ? TileShape{64, 2, 2, kShort} : TileShape{112, 2, 1, kOrdered};
    case 256:
      if (rich) return {64, 2, 1, {}};
      return brief ? TileShape{64, 2, 1, kOrdered} : TileShape{80, 2, 1, {}};
    default: return {};
  }
}

template <class Element_, int HeadDim, Variant Which>
struct ForwardConfig {
  using Element = Element_;
  static constexpr TileShape kShape = tile_shape(HeadDim, Which);
  static constexpr Tuning kTuning = kShape.tuning;
  static constexpr Variant kVariant = Which;
  static constexpr bool kRich = Which == Variant::rich;
  static constexpr Terms kTerms = Which == Variant::softcap ? Terms::softcap
                                  : Which == Variant::alibi ? Terms::causal_alibi
                                  : kRich                   ? Terms::any
                                                            : Terms::none;
  static constexpr bool kLogits = kTerms != Terms::none;  // scores become logits before the softmax
  static constexpr bool kRanged = Which != Variant::full && Which != Variant::full_sampled;
  static constexpr bool kSampled =
      Which == Variant::sampled || Which == Variant::full_sampled || Which == Variant::brief_sampled;

  static constexpr bool kFp8 = false, kLongRows = false, kTurns = true;  // see ../fp8/config.h
  static constexpr int kOutputBytes = 0;
  static constexpr int kWeightRegisters = kShape.block_kv / 4;  // a thread's weights as operand of P V

  static constexpr int kHeadDim = HeadDim;  // of q, k and v; smaller ones are padded with zeros by the copy engine
  static constexpr int kBlockKv = kShape.block_kv;
  static constexpr int kConsumers = kShape.consumers;
  static constexpr int kBlockQ = 64 * kConsumers;
  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kQStages = kShape.q_stages;
  static constexpr int kStages = 2;
  // The description of a tile is needed for longer than its queries: until its output is stored.
  static constexpr int kTileBuffers = kQStages == 1 ? 3 : 2 * kQStages;

  // The output is staged in the shared memory of its queries, if the next tile's queries have another stage.
  static constexpr bool kStagedOutput = kQStages > 1;

  // A tile is stored as panels of 64 columns, that is 128 bytes, under the copy engine's 128-byte swizzle.
  static constexpr int kPanelColumns = 64;
  static constexpr int kPanels = (HeadDim + kPanelColumns - 1) / kPanelColumns;
  static constexpr int kQPanelBytes = kBlockQ * 128, kKvPanelBytes = kBlockKv * 128;
  static constexpr int kQBytes = kPanels * kQPanelBytes, kKvBytes = kPanels * kKvPanelBytes, kVBytes = kKvBytes;

  // 40 x 128 + 232 x 256 = 168 x 384 and 32 x 128 + 160 x 384 = 128 x 512: exactly what the launch allocates.
  static constexpr int kProducerRegisters = kConsumers == 2 ? 40 : 32;
  static constexpr int kConsumerRegisters = kConsumers == 2 ? 232 : 160;

  static_assert(kBlockKv % 16 == 0 && (kConsumers == 2 || kConsumers == 3));
};

// What the e4m3 kernels hold beside that; see Fp8Scales.
template <class C, bool = C::kFp8>
struct Fp8Storage {
  alignas(1024) std::uint8_t out[C::kOutputBytes];
  alignas(16) float2 q[C::kTileBuffers][C::kBlockQ + 2];  // from an even row on
  alignas(16) float v_columns[C::kTileBuffers][2 * C::kHeadDim];
  float k_scale[C::kStages];
};
template <class C>
struct Fp8Storage<C, false> {};

template <class C>
struct SharedStorage {
  alignas(1024) std::uint8_t q[C::kQStages][C::kQBytes];
  alignas(1024) std::uint8_t k[C::kStages][C::kKvBytes];
  alignas(1024) std::uint8_t v[C::kStages][C::kVBytes];
  WorkTile tile[C::kTileBuffers];
  std::uint64_t q_full[C::kQStages], q_empty[C::kQStages];
  std::uint64_t k_full[C::kStages], k_empty[C::kStages];
  std::uint64_t v_full[C::kStages], v_empty[C::kStages];
  float fence_word;  // target of scheduling_fence()
  [[no_unique_address]] Fp8Storage<C> fp8;
};

template <class C>
inline constexpr int kSharedBytes = static_cast<int>(sizeof(SharedStorage<C>)) + kSharedAlignment;

// A kernel as the launch code sees it.
struct ForwardKernelHandle {
  const void* function = nullptr;  // void(ForwardMaps, ForwardParams)
  int block_q = 0, block_kv = 0;
  int threads = 0;
  int shared_bytes = 0;
};

}  // namespace rootdk::cuda::hopper
