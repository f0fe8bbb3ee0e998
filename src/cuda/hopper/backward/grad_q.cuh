#pragma once

// The gradient of q. One warpgroup multiplies; two threads add the results to memory in a fixed order; the warpgroup
// itself rounds a sum if it adds last.

#include "cuda/hopper/backward/gradient_products.cuh"
#include "cuda/hopper/backward/stores.cuh"
#include "cuda/hopper/backward/tiles.cuh"
#include "cuda/hopper/shared/ring.cuh"
#include "cuda/ptx/bulk_copy.cuh"
#include "cuda/ptx/bulk_pending.cuh"
#include "cuda/ptx/fence.cuh"
#include "cuda/ptx/global.cuh"
#include "cuda/ptx/mbarrier.cuh"

namespace rootdk::cuda::hopper {

// Computes grad_q = grad_scores k over the keys of the tile, in parts of 64 x 64, and writes it to shared memory in the
// order of accumulators, from where a sender adds it to the sum of the query tile. The last key tile instead loads that
// sum into its accumulators, adds to it, and stores the rounded gradient.
template <class C>
class GradQWarpgroup {
 public:
  __device__ __forceinline__ GradQWarpgroup(BackwardStorage<C>& shared, const BackwardParams& params)
      : shared_(shared), p_(params), lane_(threadIdx.x & 31) {
    scores_matrix_ = ptx::matrix_descriptor(ptx::shared_address(shared.grad_scores), 16, kRowGroupBytes);
    k_matrix_ = ptx::matrix_descriptor(ptx::shared_address(shared.k), 16, kRowGroupBytes);
  }

  __device__ __forceinline__ void run() {
    while (true) {
      ptx::mbarrier_wait(ptx::shared_address(&shared_.k_full[k_.stage]), k_.parity);
      const KeyTile tile = this_tile();
      if (__shfl_sync(0xffffffffu, tile.sequence, 0) < 0) return;
      head_ = tile.kv_head * p_.rule.group();
      walk_ = QueryWalk(tile);
      rounds_first_ = tile.rounds_first;
      rounds_tiles_ = static_cast<unsigned>(tile.rounds_last - tile.rounds_first + 1);
#pragma unroll 1
      for (int steps = __shfl_sync(0xffffffffu, tile.tiles, 0) * p_.rule.group(); steps > 0; --steps) step();
      ptx::mbarrier_arrive(ptx::shared_address(&shared_.k_empty[k_.stage]));
      k_.advance();
    }
  }

 private:
  // Read from shared memory at every use, to save registers.
  __device__ __forceinline__ KeyTile this_tile() const {
    return read_key_tile(ptx::shared_address(&shared_.tile[k_.stage]));
  }

  __device__ __forceinline__ void step() {
    if (static_cast<unsigned>(walk_.tile() - rounds_first_) < rounds_tiles_) {
      round_sum();
    } else {
      send();
    }
    head_ += walk_.advance();
    scores_.advance();
  }

  __device__ __forceinline__ void wait_for_scores() const {
    ptx::mbarrier_wait(ptx::shared_address(&shared_.grad_scores_full[scores_.stage]), scores_.parity);
  }

  template <bool Adds>
  __device__ __forceinline__ void multiply(float (&gradient)[32], int part) const {
    const int scores_offset = part % C::kRowParts * C::kScorePanelBytes;
    const int k_offset = part / C::kRowParts * C::kKvPanelBytes;
    ptx::wgmma_fence();
    multiply_scores_keys<C, Adds>(gradient,
                                  ptx::advance(scores_matrix_, scores_.stage * C::kScoreBytes + scores_offset),
                                  ptx::advance(k_matrix_, k_.stage * C::kKvBytes + k_offset));
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin(gradient);
    if (part == C::kParts - 1 && lane_ == 0) {
      ptx::mbarrier_arrive(ptx::shared_address(&shared_.grad_scores_empty[scores_.stage]));
    }
  }

  __device__ __forceinline__ void send() {
    wait_for_scores();
#pragma unroll 1
    for (int part = 0; part < C::kParts; ++part) {
      float gradient[32];
      multiply<false>(gradient, part);
      hand_to_sender(gradient, part);
    }
    sender_ ^= 1;
  }

  __device__ __forceinline__ void hand_to_sender(const float (&gradient)[32], int part) {
    ptx::mbarrier_wait(ptx::shared_address(&shared_.grad_q_empty[buffer_.stage]), buffer_.parity ^ 1);
    const std::uint32_t own = ptx::shared_address(shared_.grad_q[buffer_.stage]) + (threadIdx.x & 127) * 16;
    buffer_.advance();
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      ptx::store_shared(own + c * 128 * 16,
                        make_float4(gradient[4 * c], gradient[4 * c + 1], gradient[4 * c + 2], gradient[4 * c + 3]));
    }
    ptx::fence_async_shared();
    __syncwarp();
    // Each sender has separate barriers.
    if (lane_ == 0) ptx::mbarrier_arrive(ptx::shared_address(&shared_.grad_q_full[sender_][part]));
  }

  __device__ __forceinline__ void round_sum() {
    const KeyTile tile = this_tile();
    const int index = first_query_tile<C>(p_, tile.sequence, head_, tile.q_begin) + walk_.tile();
    const int rank = add_turn<C>(p_, tile, walk_.tile()).number;  // key tiles that add before this one
    if (rank > 0) {
      if (lane_ == 0) {
        while (ptx::load_acquire(p_.turns + index) != rank) {
        }
      }
      __syncwarp();
    }
#pragma unroll 1
    for (int part = 0; part < C::kParts; ++part) {
      float gradient[32] = {};
      if (rank > 0) load_sum(gradient, index, part);
      if (part == 0) wait_for_scores();
      ptx::pin(gradient);
      multiply<true>(gradient, part);
      store_rounded(gradient, index, part);
    }
  }

  __device__ __forceinline__ void load_sum(float (&gradient)[32], int index, int part) const {
    const auto* source = reinterpret_cast<const float4*>(p_.grad_q_tiles + std::int64_t{index} * C::kGradQElements +
                                                         part * C::kPartElements) +
                         (threadIdx.x & 127);
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const float4 four = __ldcg(source + c * 128);  // written by other multiprocessors: not through L1
      gradient[4 * c] = four.x;
      gradient[4 * c + 1] = four.y;
      gradient[4 * c + 2] = four.z;
      gradient[4 * c + 3] = four.w;
    }
  }

  __device__ __forceinline__ void store_rounded(const float (&gradient)[32], int index, int part) const {
    if (!p_.grad_q.data) return;
    const KeyTile tile = this_tile();
    const int row0 = walk_.tile() * C::kBlockQ, thread = threadIdx.x & 127;
    store_grad_q_part<C>(gradient, p_, {entry_of(tile, p_), head_, tile.q_begin + row0}, tile.q_len - row0, part,
                         thread);
    if (!all_finite(gradient)) p_.suspects[p_.items + index] = 1;
  }

  BackwardStorage<C>& shared_;
  const BackwardParams& p_;
  const int lane_;
  std::uint64_t scores_matrix_, k_matrix_;
  int head_ = 0;
  QueryWalk walk_;
  int rounds_first_ = 0;  // the first query tile whose sum is rounded here
  unsigned rounds_tiles_ = 0;
  int sender_ = 0;  // the sender of the next tile
  Ring<C::kKeyStages> k_;
  Ring<2> scores_;
  Ring<C::kPartBuffers> buffer_;
};

// One of two sender threads. They alternate between query tiles, so that each has the time of two tiles to wait for its
// turn, add, and pass the turn on.
//
// A counter per query tile and sum says which key tile adds next (add_turn). The sender waits for its turn, adds (or
// stores, if it is the first, so that the sum need not be cleared), waits until the add is done, and passes the turn
// on.
template <class C>
class GradQSender {
 public:
  __device__ __forceinline__ GradQSender(BackwardStorage<C>& shared, const BackwardParams& params, int index)
      : shared_(shared), p_(params), index_(index) {}

  __device__ __forceinline__ void run() {
    while (true) {
      ptx::mbarrier_wait(ptx::shared_address(&shared_.k_full[k_.stage]), k_.parity);
      const KeyTile tile = read_key_tile(ptx::shared_address(&shared_.tile[k_.stage]));
      if (tile.sequence < 0) break;
      ptx::mbarrier_arrive(ptx::shared_address(&shared_.k_empty[k_.stage]));
      k_.advance();
      if (tile.tiles > 0) walk(tile);
    }
    ptx::bulk_wait_done();
  }

 private:
  __device__ __forceinline__ void walk(const KeyTile& tile) {
    int first_tile = first_query_tile<C>(p_, tile.sequence, tile.kv_head * p_.rule.group(), tile.q_begin);
    const int sum_tiles = p_.queries.planes * p_.queries.tiles;
    QueryWalk walk(tile);
#pragma unroll 1
    for (int steps = tile.tiles * p_.rule.group(); steps > 0; --steps) {
      const int i = walk.tile();
      if (!tile.rounds(i)) {
        if (turn_ == index_) {
          const AddTurn turn = add_turn<C>(p_, tile, i);
          send(turn.sum * sum_tiles + first_tile + i, turn.number);
        }
        turn_ ^= 1;
        first_buffer_ = (first_buffer_ + C::kParts) % C::kPartBuffers;
      }
      if (walk.advance()) first_tile += p_.queries.tiles;
    }
  }

  __device__ __forceinline__ void send(int tile, int order) {
    int* turn = p_.turns + tile;
    float* destination = p_.grad_q_tiles + static_cast<std::int64_t>(tile) * C::kGradQElements;
    while (ptx::load_acquire(turn) != order) {
    }
    ptx::fence_async_all();  // orders the acquire before the copy engine's add
#pragma unroll
    for (int part = 0; part < C::kParts; ++part) {
      ptx::mbarrier_wait(ptx::shared_address(&shared_.grad_q_full[index_][part]), full_.parity);
      const int buffer = (first_buffer_ + part) % C::kPartBuffers;
      const std::uint32_t source = ptx::shared_address(shared_.grad_q[buffer]);
      if (order == 0) {
        ptx::bulk_store(destination + part * C::kPartElements, source, C::kPartBytes);
      } else {
        ptx::bulk_add_f32(destination + part * C::kPartElements, source, C::kPartBytes);
      }
      ptx::bulk_commit();
      if (part > 0) release_buffer<1>((first_buffer_ + part - 1) % C::kPartBuffers);
    }
    release_buffer<0>((first_buffer_ + C::kParts - 1) % C::kPartBuffers);
    full_.advance();
    ptx::bulk_wait_done();
    ptx::fence_async_all();
    ptx::store_release(turn, order + 1);
  }

  // Waits until all copies but the last Pending have read their buffers, then releases the buffer.
  template <int Pending>
  __device__ __forceinline__ void release_buffer(int buffer) const {
    ptx::bulk_wait_read_all_but<Pending>();
    ptx::mbarrier_arrive(ptx::shared_address(&shared_.grad_q_empty[buffer]));
  }

  BackwardStorage<C>& shared_;
  const BackwardParams& p_;
  const int index_;
  int turn_ = 0;
  int first_buffer_ = 0;  // of the current tile's first part
  Ring<C::kKeyStages> k_;
  Ring<1> full_;
};

}  // namespace rootdk::cuda::hopper
