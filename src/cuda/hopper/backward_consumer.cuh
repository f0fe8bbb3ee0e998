#pragma once

// A consumer warpgroup of the backward kernel: 64 keys, their gradients in registers for the whole work item.
//
// Per query tile t, with at most 184 registers of accumulators and operands alive:
//   issue dP(t), dV += P(t) dO(t) | wait for dP | dP - delta in place | wait for dV | dS(t), in place of P(t)
//   issue S(t+1), dK += dS(t) Q(t) | dS(t) to shared memory | wait for S | exponentials in place | wait for dK | P(t+1)
// where S, P, dP, dS are transposed, rows are keys. ptxas puts the products one after another (warning C7512) unless
// about 30 registers are left beyond these.

#include <cstddef>

#include "cuda/hopper/backward_logits.cuh"
#include "cuda/hopper/backward_products.cuh"
#include "cuda/hopper/ring.cuh"
#include "cuda/hopper/softmax.cuh"
#include "cuda/ptx/fence.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/stmatrix.cuh"

namespace rootdk::cuda::hopper {

// A 64 x HeadDim accumulator, times a factor, to 16-bit rows. row: of r = 0; rows from `rows` on and columns from
// `columns` on are left alone. The quad exchanges its parts so that every thread stores 16 contiguous bytes.
template <class Element, int HeadDim>
__device__ __forceinline__ void store_gradient(const float (&gradient)[HeadDim / 2], float factor, Element* first,
                                               std::int64_t row_stride, int row, int rows, int columns) {
  const int quad = threadIdx.x & 3;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    Element* out = first + (row + 8 * r) * row_stride + 8 * quad;
#pragma unroll
    for (int group = 0; group < HeadDim / 32; ++group) {
      std::uint32_t pairs[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float* pair = &gradient[16 * group + 4 * c + 2 * r];
        pairs[c] = ptx::pack<Element>(pair[0] * factor, pair[1] * factor);
      }
      quad_transpose(pairs, quad);
      if (row + 8 * r < rows && 32 * group + 8 * quad < columns) {
        *reinterpret_cast<uint4*>(out + 32 * group) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
      }
    }
  }
}

template <int N>
__device__ __forceinline__ bool all_finite(const float (&values)[N]) {
  float probe[4] = {};  // NaN as soon as one value is not finite
#pragma unroll
  for (int i = 0; i < N; ++i) probe[i % 4] = fmaf(values[i], 0.f, probe[i % 4]);
  return (probe[0] + probe[1]) + (probe[2] + probe[3]) == 0.f;
}

// Registers are scarce: addresses and operands are computed from one base, and the key tile is read again from shared
// memory where it is needed.
template <class C>
class BackwardConsumer {
 public:
  using Element = typename C::Element;
  using Shared = BackwardStorage<C>;
  static constexpr int kBlockQ = C::kBlockQ;
  static constexpr bool kSoftcap = C::kVariant == BackwardVariant::softcap;
  static constexpr bool kAlibi = C::kVariant == BackwardVariant::alibi;

  __device__ __forceinline__ BackwardConsumer(Shared& shared, const BackwardParams& params)
      : p_(params), base_(ptx::shared_address(&shared)), thread_(threadIdx.x - 128) {}

  __device__ __forceinline__ void run() {
    while (true) {
      ptx::mbarrier_wait(at(offsetof(Shared, k_full), k_.stage), k_.parity);
      if (!begin_tile()) return;
#pragma unroll
      for (int i = 0; i < C::kHeadDim / 2; ++i) grad_k_[i] = grad_v_[i] = 0.f;
      if (steps_ > 0) {
        first_weights();
#pragma unroll 1
        for (; steps_ > 1; --steps_) step<false>();
        step<true>();
      }
      const KeyTile tile = this_tile();
      release(offsetof(Shared, k_empty), k_.stage);
      k_.advance();
      store(tile);
    }
  }

 private:
  __device__ __forceinline__ int lane() const { return thread_ & 31; }
  // The first key of the warpgroup, of the warp and of the thread, inside the tile.
  __device__ __forceinline__ int first_key() const { return thread_ / 128 * 64; }
  __device__ __forceinline__ int warp_key() const { return thread_ / 32 * 16; }
  __device__ __forceinline__ int key() const { return warp_key() + lane() / 4; }

  // Barriers, and what else is an array of 8-byte words.
  __device__ __forceinline__ std::uint32_t at(std::size_t offset, int index = 0) const {
    return base_ + static_cast<std::uint32_t>(offset) + 8 * index;
  }
  __device__ __forceinline__ void release(std::size_t offset, int index = 0) const {
    if (lane() == 0) ptx::mbarrier_arrive(at(offset, index));
  }
  __device__ __forceinline__ std::uint32_t tile_address() const {
    return at(offsetof(Shared, tile)) + k_.stage * sizeof(KeyTile);
  }
  __device__ __forceinline__ KeyTile this_tile() const { return read_key_tile(tile_address()); }
  // Of this thread's first query in an array of rows.
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
    if constexpr (kAlibi) head_ = tile.kv_head * p_.rule.group();
    return true;
  }
  // The tiles to walk over, and those that need no mask: KeyTile's second four.
  __device__ __forceinline__ int4 walk() const {
    return ptx::load_shared_int4(tile_address() + offsetof(KeyTile, first));
  }
  // Its last four: z is the first row that sees the first key, w the number of keys.
  __device__ __forceinline__ int4 mask_limits() const {
    return ptx::load_shared_int4(tile_address() + offsetof(KeyTile, kv_visible));
  }
  __device__ __forceinline__ bool needs_mask(const int4& walk) const { return i_ < walk.z || i_ > walk.w; }
  // Whether the next tile needs a mask.
  __device__ __forceinline__ bool next_query_tile() {
    const int4 tiles = walk();
    if constexpr (kAlibi) head_ += i_ == tiles.x;
    i_ = i_ == tiles.x ? tiles.y : i_ - 1;
    return needs_mask(tiles);
  }

  // The first tile of an item: there is nothing to overlap with yet.
  __device__ __forceinline__ void first_weights() {
    float s[kBlockQ / 2];
    ptx::mbarrier_wait(at(offsetof(Shared, q_full), q_.stage), q_.parity);
    ptx::wgmma_fence();
    multiply_key_query<C>(s, k_operand(), q_operand(q_.stage));
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin(s);
    scores_to_weights(s, q_.stage, needs_mask(walk()));
    to_tails<Element>(s, weight_tails_);
    to_operand<Element>(s, weights_);
    ptx::mbarrier_wait(at(offsetof(Shared, v_full)), v_.parity);
    v_.advance();
  }

  template <bool Last>
  __device__ __forceinline__ void step() {
    asm volatile(""
                 : "+r"(base_),
                   "+r"(thread_));  // else ptxas keeps a register for every address that is the same in all steps
    std::uint32_t grad_scores[kBlockQ / 4];
    Ring<C::kStages> next = q_;
    next.advance();
    {
      float grad_weights[kBlockQ / 2];
      ptx::mbarrier_wait(at(offsetof(Shared, grad_out_full), q_.stage), q_.parity);
      ptx::pin(weights_);
      ptx::pin(grad_v_);
      ptx::wgmma_fence();
      multiply_key_query<C>(grad_weights, v_operand(), grad_out_operand(q_.stage));
      ptx::wgmma_commit();
      add_weighted_queries<C>(grad_v_, weights_, grad_out_transposed(q_.stage));
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      ptx::pin(grad_weights);
      subtract_delta(grad_weights, row_address(offsetof(Shared, delta), q_.stage));
      order(grad_weights[kBlockQ / 2 - 2], grad_weights[kBlockQ / 2 - 1]);
      ptx::wgmma_wait<0>();  // for grad_v too: grad_scores may then replace the weights register by register
      ptx::pin(grad_weights);
      ptx::pin(weights_);
      ptx::pin(grad_v_);
      if constexpr (Last) release(offsetof(Shared, v_empty));
      to_grad_scores<C>(weights_, weight_tails_, grad_weights, grad_scores,
                        row_address(offsetof(Shared, negative_lse), q_.stage), p_.inverse_cap_log2);
    }
    // Both products go out before grad_scores go to shared memory: they need registers only.
    float s[kBlockQ / 2];
    if constexpr (!Last) ptx::mbarrier_wait(at(offsetof(Shared, q_full), next.stage), next.parity);
    ptx::pin(grad_scores);
    ptx::pin(grad_k_);
    ptx::wgmma_fence();
    if constexpr (!Last) {
      multiply_key_query<C>(s, k_operand(), q_operand(next.stage));
      ptx::wgmma_commit();
    }
    add_weighted_queries<C>(grad_k_, grad_scores, q_transposed(q_.stage));
    ptx::wgmma_commit();
    hand_to_grad_q(grad_scores);
    release(offsetof(Shared, grad_out_empty), q_.stage);
    if constexpr (!Last) {
      const bool mask = next_query_tile();
      ptx::wgmma_wait<1>();
      ptx::pin(s);
      scores_to_weights(s, next.stage, mask);
      to_tails<Element>(s, weight_tails_);
      order(s[kBlockQ / 2 - 2], s[kBlockQ / 2 - 1]);
    }
    ptx::wgmma_wait<0>();
    if constexpr (!Last) ptx::pin(s);
    ptx::pin(grad_scores);
    ptx::pin(grad_k_);
    release(offsetof(Shared, q_empty), q_.stage);
    if constexpr (!Last) to_operand<Element>(s, weights_);
    q_ = next;
  }

  // What made these two values stays in front of the next wait.
  __device__ __forceinline__ void order(float a, float b) const { order_point(a, b, at(offsetof(Shared, order_word))); }

  // The weights of query tile i_, whose rows lie in `stage`, in place of its scores.
  __device__ __forceinline__ void scores_to_weights(float (&s)[kBlockQ / 2], int stage, bool mask) {
    if constexpr (kSoftcap) softcap<Threads::warp>(s, p_.softcap);
    const int query = i_ * kBlockQ + 2 * (lane() & 3);
    if (mask) {
      const int4 limits = mask_limits();
      mask_keys(s, limits.z + key() - query, static_cast<unsigned>(p_.left + p_.right + 1), limits.w - key());
    }
    const std::uint32_t rows = row_address(offsetof(Shared, negative_lse), stage);
    if constexpr (kAlibi) {
      to_weights_alibi(s, p_.scale_log2, rows, kLog2e * p_.rule.alibi_slopes(head_),
                       query - (mask_limits().z + p_.right) - key());
    } else {
      to_weights(s, kSoftcap ? 1.f : p_.scale_log2, rows);
    }
  }

  // stmatrix: lane l gives row l % 16 of the warp's 16 keys, and 16-byte chunk l / 16 of each 16 queries. The buffers
  // of grad_scores come and go with those of q.
  __device__ __forceinline__ void hand_to_grad_q(const std::uint32_t (&grad_scores)[kBlockQ / 4]) {
    static_assert(C::kStages == 2);
    ptx::mbarrier_wait(at(offsetof(Shared, grad_scores_empty), q_.stage), q_.parity ^ 1);
    const std::uint32_t row =
        at(offsetof(Shared, grad_scores)) + q_.stage * C::kScoreBytes + (warp_key() + (lane() & 15)) * 128;
    const std::uint32_t chunk = lane() >> 4, swizzle = lane() & 7;
#pragma unroll
    for (int g = 0; g < kBlockQ / 16; ++g) {
      ptx::stmatrix_x4(row + (g / 4) * C::kScorePanelBytes + (((g % 4) * 2 + chunk) ^ swizzle) * 16, grad_scores[4 * g],
                       grad_scores[4 * g + 1], grad_scores[4 * g + 2], grad_scores[4 * g + 3]);
    }
    ptx::fence_async_shared();
    __syncwarp();
    release(offsetof(Shared, grad_scores_full), q_.stage);
  }

  __device__ __forceinline__ void store(const KeyTile& tile) {
    const int entry = entry_of(tile, p_), row = tile.key0 + key(), rows = tile.kv_len;
    const auto first_row = [&](const DeviceTensor& tensor) {
      return static_cast<Element*>(tensor.data) + entry * tensor.batch_stride + tile.kv_head * tensor.head_stride +
             tile.kv_begin * tensor.row_stride;
    };
    if (p_.grad_v.data) {
      store_gradient<Element, C::kHeadDim>(grad_v_, 1.f, first_row(p_.grad_v), p_.grad_v.row_stride, row, rows,
                                           p_.rule.value_dim);
    }
    if (p_.grad_k.data) {
      store_gradient<Element, C::kHeadDim>(grad_k_, p_.rule.scale, first_row(p_.grad_k), p_.grad_k.row_stride, row,
                                           rows, p_.rule.head_dim);
    }
    if (!all_finite(grad_k_) || !all_finite(grad_v_)) p_.suspects[key_slot<C>(p_, tile)] = 1;
  }

  const BackwardParams& p_;
  std::uint32_t base_;  // of the shared memory
  int thread_;          // among those of the consumers
  Ring<2> k_;
  Ring<1> v_;
  Ring<C::kStages> q_;

  int steps_;  // query tiles still to come, over all heads of the group
  int i_;      // query tile at work
  int head_ = 0;
  float grad_k_[C::kHeadDim / 2], grad_v_[C::kHeadDim / 2];  // [64 keys, head_dim]
  std::uint32_t weights_[kBlockQ / 4];                       // of the tile at work, as operand
  std::uint32_t weight_tails_[kBlockQ / 8];                  // what the rounding to 16 bits lost
};

}  // namespace rootdk::cuda::hopper
