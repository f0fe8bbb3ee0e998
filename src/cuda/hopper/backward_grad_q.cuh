#pragma once

// The gradient of q: one warpgroup multiplies, two threads send the tiles out in their fixed order.

#include "cuda/hopper/backward_products.cuh"
#include "cuda/hopper/backward_tiles.cuh"
#include "cuda/hopper/ring.cuh"
#include "cuda/ptx/bulk_copy.cuh"
#include "cuda/ptx/fence.cuh"
#include "cuda/ptx/global.cuh"
#include "cuda/ptx/mbarrier.cuh"

namespace rootdk::cuda::hopper {

// grad_q = grad_scores k over the 128 keys, in two halves, to shared memory in the order of accumulators.
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
      const int4 tile = ptx::load_shared_int4(ptx::shared_address(&shared_.tile[k_.stage]));
      if (__shfl_sync(0xffffffffu, tile.x, 0) < 0) return;
#pragma unroll 1
      for (int steps = __shfl_sync(0xffffffffu, tile.w, 0) * p_.rule.group(); steps > 0; --steps) step();
      if (lane_ == 0) ptx::mbarrier_arrive(ptx::shared_address(&shared_.k_empty[k_.stage]));
      k_.advance();
    }
  }

 private:
  __device__ __forceinline__ void step() {
    ptx::mbarrier_wait(ptx::shared_address(&shared_.grad_scores_full[scores_.stage]), scores_.parity);
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      const int scores_offset = C::kHalvesAreColumns ? 0 : half * C::kScorePanelBytes;
      const int k_offset = C::kHalvesAreColumns ? half * C::kKvPanelBytes : 0;
      float gradient[32];
      ptx::wgmma_fence();
      multiply_scores_keys<C>(gradient, ptx::advance(scores_matrix_, scores_.stage * C::kScoreBytes + scores_offset),
                              ptx::advance(k_matrix_, k_.stage * C::kKvBytes + k_offset));
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::pin(gradient);
      if (half == 1 && lane_ == 0) {
        ptx::mbarrier_arrive(ptx::shared_address(&shared_.grad_scores_empty[scores_.stage]));
      }
      hand_to_sender(gradient, half);
    }
    grad_q_.advance();
    scores_.advance();
  }

  __device__ __forceinline__ void hand_to_sender(const float (&gradient)[32], int half) {
    ptx::mbarrier_wait(ptx::shared_address(&shared_.grad_q_empty[half]), grad_q_.parity ^ 1);
    const std::uint32_t own = ptx::shared_address(shared_.grad_q[half]) + (threadIdx.x & 127) * 16;
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      ptx::store_shared(own + c * 128 * 16,
                        make_float4(gradient[4 * c], gradient[4 * c + 1], gradient[4 * c + 2], gradient[4 * c + 3]));
    }
    ptx::fence_async_shared();
    __syncwarp();
    // Each sender has barriers of its own: the parity of the tile names it.
    if (lane_ == 0) ptx::mbarrier_arrive(ptx::shared_address(&shared_.grad_q_full[scores_.stage][half]));
  }

  BackwardStorage<C>& shared_;
  const BackwardParams& p_;
  const int lane_;
  std::uint64_t scores_matrix_, k_matrix_;
  Ring<2> k_, scores_;
  Ring<1> grad_q_;
};

// One of two threads that take turns, so that waiting for an add to finish, passing the turn on and waiting for the
// next one have the time of two tiles.
//
// A query tile's counter says which of its key tiles adds next (rank_of). The sender waits for its turn, adds (or
// stores, if it is the first: nobody has to clear the tile), waits until the add is done, and passes the turn on.
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
    int slot = first_query_slot<C>(p_, tile.sequence, tile.kv_head * p_.rule.group(), tile.q_begin);
    const int lane_tiles = p_.queries.planes * p_.queries.slots;
    QueryWalk walk(tile);
#pragma unroll 1
    for (int steps = tile.tiles * p_.rule.group(); steps > 0; --steps) {
      if (turn_ == index_) {
        const int i = walk.tile();
        const int rank = rank_of<C>(p_, tile.key0 / C::kBlockKv, i, tile.shift());
        send((rank & (p_.order.lanes() - 1)) * lane_tiles + slot + i, rank >> p_.order.lane_shift);
      }
      turn_ ^= 1;
      if (walk.advance()) slot += p_.queries.slots;
    }
  }

  __device__ __forceinline__ void send(int tile, int order) {
    int* turn = p_.turns + tile;
    float* destination = p_.grad_q_tiles + static_cast<std::int64_t>(tile) * C::kGradQElements;
    while (ptx::load_acquire(turn) != order) {
    }
    ptx::fence_async_all();  // what was acquired, before the copy engine adds to it
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      ptx::mbarrier_wait(ptx::shared_address(&shared_.grad_q_full[index_][half]), full_.parity);
      const std::uint32_t source = ptx::shared_address(shared_.grad_q[half]);
      if (order == 0) {
        ptx::bulk_store(destination + half * C::kHalfElements, source, C::kHalfBytes);
      } else {
        ptx::bulk_add_f32(destination + half * C::kHalfElements, source, C::kHalfBytes);
      }
      ptx::bulk_commit();
      ptx::bulk_wait_read();
      ptx::mbarrier_arrive(ptx::shared_address(&shared_.grad_q_empty[half]));
    }
    full_.advance();
    ptx::bulk_wait_done();
    ptx::fence_async_all();
    ptx::store_release(turn, order + 1);
  }

  BackwardStorage<C>& shared_;
  const BackwardParams& p_;
  const int index_;
  int turn_ = 0;
  Ring<2> k_;
  Ring<1> full_;
};

}  // namespace rootdk::cuda::hopper
