#pragma once

// Which backward kernels exist, their tile shapes and their shared memory: one description for host and device.

#include <cstdint>
#include <type_traits>

#include "cuda/hopper/backward/params.h"
#include "cuda/hopper/shared/tile_config.h"

namespace rootdk::cuda::hopper {

// The variants of the kernel. All support causal, window, key lengths, packed sequences, grouped heads and sinks.
enum class BackwardVariant : std::int32_t {
  plain,
  softcap,  // with a softcap
  alibi,    // with ALiBi and no key to the right of its query
  rich,     // with any term, each behind a branch at run time
};

constexpr bool has_two_passes(int head_dim, BackwardVariant variant) {
  return head_dim > 192 && variant == BackwardVariant::plain;
}

template <class Element_, int HeadDim, BackwardVariant Which>
struct BackwardConfig {
  using Element = Element_;
  static constexpr BackwardVariant kVariant = Which;

  // Two consumer warpgroups share the work of a block. By keys (consumer.cuh): each has 64 of 128 keys and both their
  // gradients. Split (split.cuh): one has the gradient of v and the other that of k, of the same 64 keys. That leaves
  // registers for twice the columns, or for rich logits.
  static constexpr bool kSplit = HeadDim > 128 || Which == BackwardVariant::rich;
  // The gradient of q is computed by a separate kernel (queries.cuh).
  static constexpr bool kTwoPasses = has_two_passes(HeadDim, Which);

  static constexpr int kHeadDim = HeadDim;  // of q, k and v; smaller ones are padded with zeros by the copy engine
  static constexpr int kBlockKv = kSplit ? 64 : 128;  // keys of a work item
  static constexpr int kBlockQ = kSplit ? 64 : 8192 / HeadDim;
  static constexpr int kThreads = kTwoPasses ? 384 : 512;

  // As many stages as fit into shared memory.
  static constexpr int kStages = 2;  // of q, and of the gradients of scores
  static constexpr int kGradOutStages = HeadDim > 192 && !kTwoPasses ? 1 : 2;
  static constexpr int kKeyStages = HeadDim > 128 ? 1 : 2;

  // 32 + 64 + 2 x 208 = 40 + 72 + 2 x 200 = 4 x 128, and 40 + 2 x 232 = 3 x 168: exactly what the launch allocates.
  static constexpr int kServiceRegisters = kSplit ? 40 : 32, kGradQRegisters = kSplit ? 72 : 64;
  static constexpr int kConsumerRegisters = kTwoPasses ? 232 : kSplit ? 200 : 208;

  // A tile is stored as panels of 64 columns, that is 128 bytes, under the copy engine's 128-byte swizzle. The gradient
  // of the scores is [key][query] in the same form.
  static constexpr int kPanels = HeadDim / 64;
  static constexpr int kQPanelBytes = kBlockQ * 128, kKvPanelBytes = kBlockKv * 128;
  static constexpr int kQBytes = kPanels * kQPanelBytes, kKvBytes = kPanels * kKvPanelBytes;
  static constexpr int kScorePanelBytes = kBlockKv * 128, kScoreBytes = kBlockQ / 64 * kScorePanelBytes;

  // The gradient of a query tile is sent in parts of 64 x 64: part p is row block p % kRowParts of panel p / kRowParts.
  static constexpr int kRowParts = kBlockQ / 64;
  static constexpr int kParts = kRowParts * kPanels, kPartBuffers = 2;
  static constexpr int kPartElements = 64 * 64, kPartBytes = kPartElements * 4;
  static constexpr int kGradQElements = kParts * kPartElements;
  static_assert(kBlockQ * HeadDim == kGradQElements);
};

// A work item: some keys of one head, and the query tiles that see any of them. The loading warp passes it to the
// others.
struct alignas(16) KeyTile {
  int sequence;  // batch entry, or packed sequence; -1: no more work
  int kv_head;
  int key0;   // first key, counted inside the sequence
  int tiles;  // query tiles of a head that see any of the keys; may be 0

  int end, begin;                     // the walk over query tiles goes from begin to end, downwards or upwards
  int unmasked_first, unmasked_last;  // query tiles that need no mask; none if last < first

  int q_begin, q_len;    // row of the tensor where the sequence begins, and its rows
  int kv_begin, kv_len;  // the same for keys; row i is at key position i + kv_len - q_len

  int kv_visible;  // kv_len cut by kv_lengths
  int start;       // the query tile to start with
  int first_row;   // the first row that sees key0; may be negative
  int keys;        // visible keys from key0 on

  int rounds_first,
      rounds_last;  // query tiles to whose sum this key tile adds last, and rounds it (find_rounded_tiles)

  __device__ __forceinline__ int shift() const { return kv_len - q_len; }
  __device__ __forceinline__ bool rounds(int i) const { return i >= rounds_first && i <= rounds_last; }
};

// What the warpgroup with the gradient of v passes to the one with the gradient of k: the weights in f32, from each
// thread to the thread of the same index. Weights that dropout drops are negative.
template <int GradOutStages>
struct WeightExchange {
  alignas(16) float weights[64 * 64];
  alignas(16) float grad_entropy[GradOutStages][64];
  std::uint64_t kept[64];  // by query: one bit per key, set if dropout keeps it
  std::uint64_t full, empty;
};
struct NoWeightExchange {};

template <class C>
struct BackwardStorage {
  alignas(1024) std::uint8_t k[C::kKeyStages][C::kKvBytes];
  alignas(1024) std::uint8_t v[C::kKvBytes];
  alignas(1024) std::uint8_t q[C::kStages][C::kQBytes];
  alignas(1024) std::uint8_t grad_out[C::kGradOutStages][C::kQBytes];
  alignas(1024) std::uint8_t grad_scores[C::kStages][C::kTwoPasses ? 1 : C::kScoreBytes];
  alignas(1024) float grad_q[C::kPartBuffers][C::kTwoPasses ? 1 : C::kPartElements];  // in the order of accumulators
  std::conditional_t<C::kSplit, WeightExchange<C::kGradOutStages>, NoWeightExchange> exchange;
  alignas(16) float negative_lse[C::kStages][C::kBlockQ];
  alignas(16) float delta[C::kGradOutStages][C::kBlockQ];
  KeyTile tile[C::kKeyStages];
  std::uint64_t k_full[C::kKeyStages], k_empty[C::kKeyStages];
  std::uint64_t v_full, v_empty;
  std::uint64_t q_full[C::kStages], q_empty[C::kStages];
  std::uint64_t grad_out_full[C::kGradOutStages], grad_out_empty[C::kGradOutStages];
  std::uint64_t grad_scores_full[C::kStages], grad_scores_empty[C::kStages];
  std::uint64_t grad_q_full[2][C::kParts];  // [sender][part]
  std::uint64_t grad_q_empty[C::kPartBuffers];
  std::uint64_t landed;  // a tile has arrived that still has rows to clear
  float fence_word;      // target of scheduling_fence()
};

template <class C>
inline constexpr int kBackwardSharedBytes = static_cast<int>(sizeof(BackwardStorage<C>)) + kSharedAlignment;

inline constexpr int kMostSharedBytes = 227 * 1024;  // of a block, at most

// `finish` has one thread for each thread that computed a part of the gradient of q.
template <class C>
inline constexpr int kFinishThreads = 128 * C::kParts;

// The kernels of a backward pass as the launch code sees them.
struct BackwardKernel {
  const void* prepare = nullptr;  // void(BackwardParams): one block per query tile
  const void* keys = nullptr;     // void(BackwardMaps, BackwardParams): persistent blocks
  const void* finish = nullptr;   // void(BackwardParams): blocks of query tiles, then of suspects
  int block_q = 0, block_kv = 0;
  int threads = 0, shared_bytes = 0;  // of `keys`
  int finish_threads = 0;
  const void* queries =
      nullptr;  // void(BackwardMaps, BackwardParams): one query_block() per block; null: `keys` does it
  int queries_shared_bytes = 0;
};

inline constexpr int kPrepareThreads = 256;
inline constexpr int kQueriesThreads = 384, kQueriesOfBlock = 128;

}  // namespace rootdk::cuda::hopper
