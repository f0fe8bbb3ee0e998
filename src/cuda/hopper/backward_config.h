#pragma once

// Which backward kernels exist, their tile shapes and their shared memory: one description for host and device.

#include <cstdint>

#include "cuda/hopper/backward_params.h"
#include "cuda/hopper/forward_config.h"

namespace rootdk::cuda::hopper {

// The variants of the one kernel. All know causal, window, key lengths, packed sequences, grouped heads and sinks.
enum class BackwardVariant : std::int32_t {
  plain,
  softcap,  // with a softcap
  alibi,    // with ALiBi and no key to the right of its query
};

template <class Element_, int HeadDim, BackwardVariant Which>
struct BackwardConfig {
  using Element = Element_;
  static constexpr BackwardVariant kVariant = Which;

  static constexpr int kHeadDim = HeadDim;  // of q, k and v; smaller ones are padded with zeros by the copy engine
  static constexpr int kBlockKv = 128;      // keys a work item: 64 for each of two consumer warpgroups
  static constexpr int kBlockQ = 8192 / HeadDim;
  static constexpr int kStages = 2;
  static constexpr int kThreads = 512;

  // 32 + 64 + 2 x 208 = 4 x 128: exactly what the launch allocates.
  static constexpr int kServiceRegisters = 32, kGradQRegisters = 64, kConsumerRegisters = 208;

  // A tile is stored as panels of 64 columns, that is 128 bytes, under the copy engine's 128-byte swizzle. The gradient
  // of the scores is [key][query] in the same form.
  static constexpr int kPanels = HeadDim / 64;
  static constexpr int kQPanelBytes = kBlockQ * 128, kKvPanelBytes = kBlockKv * 128;
  static constexpr int kQBytes = kPanels * kQPanelBytes, kKvBytes = kPanels * kKvPanelBytes;
  static constexpr int kScorePanelBytes = kBlockKv * 128, kScoreBytes = kBlockQ / 64 * kScorePanelBytes;

  // The gradient of a query tile leaves in two halves of 64 x 64: the columns of head_dim 128, the rows of head_dim 64.
  static constexpr bool kHalvesAreColumns = HeadDim == 128;
  static constexpr int kHalfElements = 64 * 64, kHalfBytes = kHalfElements * 4;
  static constexpr int kGradQElements = 2 * kHalfElements;
  static_assert(kBlockQ * HeadDim == kGradQElements);
};

// 128 keys of one head, with all queries that see any of them: what the loading warp hands to the others.
struct alignas(16) KeyTile {
  int sequence;  // batch entry, or packed sequence; -1: no more work
  int kv_head;
  int key0;   // first key, counted inside the sequence
  int tiles;  // query tiles of a head that see any of the keys; may be 0

  int first, last;                    // the first and the last of them
  int unmasked_first, unmasked_last;  // those of which every row sees every key; none where last < first

  int q_begin, q_len;    // row of the tensor where the sequence begins, and its rows
  int kv_begin, kv_len;  // the same for keys; row i stands at key position i + kv_len - q_len

  int kv_visible;  // kv_len cut by kv_lengths
  int start;       // the query tile to begin with
  int first_row;   // the first row that sees key0; may be negative
  int keys;        // visible ones from key0 on

  __device__ __forceinline__ int shift() const { return kv_len - q_len; }
};

template <class C>
struct BackwardStorage {
  alignas(1024) std::uint8_t k[2][C::kKvBytes];
  alignas(1024) std::uint8_t v[C::kKvBytes];
  alignas(1024) std::uint8_t q[C::kStages][C::kQBytes];
  alignas(1024) std::uint8_t grad_out[C::kStages][C::kQBytes];
  alignas(1024) std::uint8_t grad_scores[2][C::kScoreBytes];
  alignas(1024) float grad_q[2][C::kHalfElements];  // in the order of accumulators
  alignas(16) float negative_lse[C::kStages][C::kBlockQ];
  alignas(16) float delta[C::kStages][C::kBlockQ];
  KeyTile tile[2];
  std::uint64_t k_full[2], k_empty[2];
  std::uint64_t v_full, v_empty;
  std::uint64_t q_full[C::kStages], q_empty[C::kStages];
  std::uint64_t grad_out_full[C::kStages], grad_out_empty[C::kStages];
  std::uint64_t grad_scores_full[2], grad_scores_empty[2];
  std::uint64_t grad_q_full[2][2];  // [sender][half]
  std::uint64_t grad_q_empty[2];    // [half]
  std::uint64_t landed;             // a tile that still has rows to clear
  float order_word;                 // see order_point()
};

template <class C>
inline constexpr int kBackwardSharedBytes = static_cast<int>(sizeof(BackwardStorage<C>)) + kSharedAlignment;

// The three kernels of a backward pass as the launch code sees them.
struct BackwardKernel {
  const void* prepare = nullptr;  // void(BackwardParams): a block a query tile
  const void* keys = nullptr;     // void(BackwardMaps, BackwardParams): blocks stay
  const void* finish = nullptr;   // void(BackwardParams): a block a query tile, then blocks of key tiles
  int block_q = 0, block_kv = 0;
  int threads = 0, shared_bytes = 0;  // of `keys`
};

inline constexpr int kRowPassThreads = 256;  // of `prepare` and `finish`

}  // namespace rootdk::cuda::hopper
