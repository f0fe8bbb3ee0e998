#pragma once

// The base class of the consumer warpgroups of the backward kernel. Each has 64 keys, the rows of transposed tiles. It
// knows the addresses of operands, the walk over query tiles, and how gradients are stored.

#include <cstddef>

#include "cuda/hopper/backward/stores.cuh"
#include "cuda/hopper/backward/tiles.cuh"
#include "cuda/hopper/shared/products.cuh"
#include "cuda/hopper/shared/ring.cuh"
#include "cuda/hopper/shared/softmax.cuh"
#include "cuda/ptx/fence.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/stmatrix.cuh"

namespace rootdk::cuda::hopper {

// To save registers, addresses and operands are computed from one base address, and the description of the key tile is
// read from shared memory at every use.
template <class C>
class BackwardWarpgroup {
 protected:
  using Element = typename C::Element;
  using Shared = BackwardStorage<C>;
  static constexpr int kBlockQ = C::kBlockQ;
  static constexpr bool kSoftcap = C::kVariant == BackwardVariant::softcap;
  static constexpr bool kAlibi = C::kVariant == BackwardVariant::alibi;
  static constexpr bool kRich = C::kVariant == BackwardVariant::rich;

  // thread: index among the threads of the tile's keys, 16 keys per warp.
  __device__ __forceinline__ BackwardWarpgroup(Shared& shared, const BackwardParams& params, int thread)
      : p_(params), base_(ptx::shared_address(&shared)), thread_(thread) {}

  __device__ __forceinline__ int lane() const { return thread_ & 31; }
  // The first key of the warpgroup, of the warp and of the thread, inside the tile.
  __device__ __forceinline__ int first_key() const { return thread_ / 128 * 64; }
  __device__ __forceinline__ int warp_key() const { return thread_ / 32 * 16; }
  __device__ __forceinline__ int key() const { return warp_key() + lane() / 4; }

  // The address of a member of shared memory; index counts 8-byte words (barriers).
  __device__ __forceinline__ std::uint32_t at(std::size_t offset, int index = 0) const {
    return base_ + static_cast<std::uint32_t>(offset) + 8 * index;
  }
  __device__ __forceinline__ void release(std::size_t offset, int index = 0) const {
    if (lane() == 0) ptx::mbarrier_arrive(at(offset, index));
  }
  // The address of a member of a split block's exchange.
  __device__ __forceinline__ std::uint32_t exchange(std::size_t offset) const {
    return at(offsetof(Shared, exchange)) + static_cast<std::uint32_t>(offset);
  }
  __device__ __forceinline__ std::uint32_t tile_address() const {
    return at(offsetof(Shared, tile)) + k_.stage * sizeof(KeyTile);
  }
  __device__ __forceinline__ KeyTile this_tile() const { return read_key_tile(tile_address()); }
  // The address of this thread's first query in an array of row terms.
  __device__ __forceinline__ std::uint32_t row_address(std::size_t offset, int stage) const {
    return at(offset) + stage * kBlockQ * sizeof(float) + 2 * (lane() & 3) * sizeof(float);
  }

  __device__ __forceinline__ std::uint64_t matrix(std::size_t offset, std::uint32_t leading_bytes, int bytes) const {
    return ptx::matrix_descriptor(at(offset) + bytes, leading_bytes, kRowGroupBytes);
  }
  __device__ __forceinline__ std::uint64_t k_operand() const {
    return matrix(offsetof(Shared, k), 16, k_.stage * C::kKvBytes + first_key() * 128);
  }
  __device__ __forceinline__ std::uint64_t v_operand() const {
    return matrix(offsetof(Shared, v), 16, first_key() * 128);
  }
  __device__ __forceinline__ std::uint64_t q_operand(int stage) const {
    return matrix(offsetof(Shared, q), 16, stage * C::kQBytes);
  }
  __device__ __forceinline__ std::uint64_t q_transposed(int stage) const {
    return matrix(offsetof(Shared, q), C::kQPanelBytes, stage * C::kQBytes);
  }
  __device__ __forceinline__ std::uint64_t grad_out_operand(int stage) const {
    return matrix(offsetof(Shared, grad_out), 16, stage * C::kQBytes);
  }
  __device__ __forceinline__ std::uint64_t grad_out_transposed(int stage) const {
    return matrix(offsetof(Shared, grad_out), C::kQPanelBytes, stage * C::kQBytes);
  }

  // False: no more work.
  __device__ __forceinline__ bool begin_tile() {
    const KeyTile tile = this_tile();
    if (__shfl_sync(0xffffffffu, tile.sequence, 0) < 0) return false;
    steps_ = __shfl_sync(0xffffffffu, tile.tiles, 0) * p_.rule.group();
    i_ = tile.start;
    if constexpr (kAlibi || kRich) head_ = tile.kv_head * p_.rule.group();
    return true;
  }
  // Releases the keys and the tile's description. Every lane arrives, because every lane has read the description.
  __device__ __forceinline__ void release_tile() {
    ptx::mbarrier_arrive(at(offsetof(Shared, k_empty), k_.stage));
    k_.advance();
  }
  // KeyTile's second four members: the walk's end and begin, and the first and last query tile that need no mask.
  __device__ __forceinline__ int4 walk() const {
    return ptx::load_shared_int4(tile_address() + offsetof(KeyTile, end));
  }
  // KeyTile's fourth four members: y is the query tile to start with, z the first row that sees the first key, w the
  // number of keys.
  __device__ __forceinline__ int4 mask_limits() const {
    return ptx::load_shared_int4(tile_address() + offsetof(KeyTile, kv_visible));
  }
  __device__ __forceinline__ bool needs_mask(const int4& walk) const { return i_ < walk.z || i_ > walk.w; }
  // Moves to the next query tile; returns whether it needs a mask.
  __device__ __forceinline__ bool next_query_tile() {
    const int4 tiles = walk();
    if constexpr (kAlibi) head_ += i_ == tiles.x;
    i_ = hopper::next_query_tile(i_, tiles.x, tiles.y);
    if constexpr (kRich) head_ += i_ == mask_limits().y;  // the walk is back at its start
    return needs_mask(tiles);
  }

  // Keeps the computation of these two values before the next wait.
  __device__ __forceinline__ void scheduling_fence(float a, float b) const {
    hopper::scheduling_fence(a, b, at(offsetof(Shared, fence_word)));
  }

  // stmatrix: lane l gives the address of row l % 16 of the warp's 16 keys, and of 16-byte vector l / 16 of each 16
  // queries. The stages of grad_scores are those of q.
  __device__ __forceinline__ void hand_to_grad_q(const std::uint32_t (&grad_scores)[kBlockQ / 4]) const {
    static_assert(C::kStages == 2);
    ptx::mbarrier_wait(at(offsetof(Shared, grad_scores_empty), q_.stage), q_.parity ^ 1);
    const std::uint32_t row =
        at(offsetof(Shared, grad_scores)) + q_.stage * C::kScoreBytes + (warp_key() + (lane() & 15)) * 128;
    const std::uint32_t vector = lane() >> 4, swizzle = lane() & 7;
#pragma unroll
    for (int g = 0; g < kBlockQ / 16; ++g) {
      ptx::stmatrix_x4(row + (g / 4) * C::kScorePanelBytes + (((g % 4) * 2 + vector) ^ swizzle) * 16,
                       grad_scores[4 * g], grad_scores[4 * g + 1], grad_scores[4 * g + 2], grad_scores[4 * g + 3]);
    }
    ptx::fence_async_shared();
    __syncwarp();
    release(offsetof(Shared, grad_scores_full), q_.stage);
  }

  // Stores the gradient of the tile's keys or values.
  __device__ __forceinline__ void store_rows(const float (&gradient)[C::kHeadDim / 2], float factor,
                                             const DeviceTensor& tensor, int columns, const KeyTile& tile) const {
    if (!tensor.data) return;
    Element* first = static_cast<Element*>(tensor.data) + entry_of(tile, p_) * tensor.batch_stride +
                     tile.kv_head * tensor.head_stride + tile.kv_begin * tensor.row_stride;
    store_gradient<Element, C::kHeadDim>(gradient, factor, first, tensor.row_stride, tile.key0 + key(), tile.kv_len,
                                         columns);
  }
  __device__ __forceinline__ void suspect(const KeyTile& tile) const { p_.suspects[key_tile_index<C>(p_, tile)] = 1; }

  const BackwardParams& p_;
  std::uint32_t base_;  // of the shared memory
  int thread_;
  Ring<C::kKeyStages> k_;
  Ring<1> v_;
  Ring<C::kStages> q_;

  int steps_;  // query tiles still to come, over all heads of the group
  int i_;      // current query tile
  int head_ = 0;
};

}  // namespace rootdk::cuda::hopper
