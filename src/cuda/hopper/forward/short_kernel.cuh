#pragma once

// Attention over few keys: a block has some query tiles of one head and all its keys in shared memory.
//
// With one stage a block ends after its tile, and other blocks of the multiprocessor compute while it waits. With two
// it processes tiles until there are no more. There is no producer: the warp that is the last to be done with a stage
// asks for the stage's next tile. Key tiles are those of the forward kernel, in the same order, with the same
// arithmetic: both give the same bits.

#include "cuda/hopper/forward/output.cuh"
#include "cuda/hopper/forward/repair.cuh"
#include "cuda/hopper/forward/short_config.h"
#include "cuda/hopper/shared/logit_terms.cuh"
#include "cuda/hopper/shared/products.cuh"
#include "cuda/hopper/shared/ring.cuh"
#include "cuda/hopper/shared/row_results.cuh"
#include "cuda/hopper/shared/softmax.cuh"
#include "cuda/hopper/shared/work_tiles.cuh"
#include "cuda/ptx/address.cuh"
#include "cuda/ptx/bulk_copy.cuh"
#include "cuda/ptx/counter.cuh"
#include "cuda/ptx/fence.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/named_barrier.cuh"
#include "cuda/ptx/tma.cuh"

namespace rootdk::cuda::hopper {

// The rows [q0, q0 + short_rows) of a head; sequences are not packed.
__device__ __forceinline__ WorkTile short_tile(int index, const ForwardParams& p) {
  const int head_index = index / p.q_tiles, sequence = head_index / p.heads;
  return {.sequence = sequence,
          .head = head_index - sequence * p.heads,
          .q0 = (index - head_index * p.q_tiles) * p.short_rows,
          .q_begin = 0,
          .q_len = p.q_len,
          .kv_begin = 0,
          .kv_len = p.kv_len,
          .kv_visible = p.kv_lengths.data ? visible_keys(p, sequence) : p.kv_len};
}

// Asks for everything a tile needs; one thread does so.
template <class C>
__device__ __forceinline__ void load_short(ShortStorage<C>& shared, int stage, const ForwardMaps& maps,
                                           const ForwardParams& p, int index) {
  const WorkTile tile = short_tile(index, p);
  const int kv_head = tile.head / p.group, q_tiles = (min(p.q_len - tile.q0, p.short_rows) + 63) / 64;
  ShortStage<C>& to = shared.stage[stage];
  const std::uint32_t qk = ptx::shared_address(&shared.qk_full[stage]), v = ptx::shared_address(&shared.v_full[stage]);
  ptx::mbarrier_expect_bytes(qk, q_tiles * C::kQBytes + C::kKvBytes);
#pragma unroll
  for (int panel = 0; panel < C::kPanels; ++panel) {
    ptx::tma_load_4d(ptx::shared_address(to.k) + panel * C::kKvPanelBytes, &maps.k, qk, C::kPanelColumns * panel, 0,
                     kv_head, tile.sequence, ptx::kEvictNormal);
  }
#pragma unroll 1
  for (int i = 0; i < q_tiles; ++i) {
#pragma unroll
    for (int panel = 0; panel < C::kPanels; ++panel) {
      ptx::tma_load_4d(ptx::shared_address(to.q[i]) + panel * C::kQPanelBytes, &maps.q, qk, C::kPanelColumns * panel,
                       tile.q0 + 64 * i, tile.head, tile.sequence, ptx::kEvictFirst);
    }
  }
  ptx::mbarrier_expect_bytes(v, C::kKvBytes);
#pragma unroll
  for (int panel = 0; panel < C::kPanels; ++panel) {
    ptx::tma_load_4d(ptx::shared_address(to.v) + panel * C::kKvPanelBytes, &maps.v, v, C::kPanelColumns * panel, 0,
                     kv_head, tile.sequence, ptx::kEvictNormal);
  }
}

// A warpgroup: 64 rows at a time.
template <class C>
class ShortConsumer {
 public:
  using Element = typename C::Element;

  __device__ __forceinline__ ShortConsumer(ShortStorage<C>& shared, const ForwardMaps& maps,
                                           const ForwardParams& params, int warp)
      : shared_(shared), maps_(maps), p_(params), warpgroup_(warp / 4), lane_(threadIdx.x & 31) {
    row_ = (warp & 3) * 16 + lane_ / 4;
    column_ = 2 * (lane_ & 3);
  }

  __device__ __forceinline__ void run() {
    index_ = static_cast<int>(blockIdx.x);
    if constexpr (C::kStages == 1) {
      process_tile();
    } else {
#pragma unroll 1
      for (; index_ < p_.tiles; index_ += static_cast<int>(gridDim.x)) {
        process_tile();
        give_back();  // in case the warpgroup had no row in this tile
        leaving_ = ring_.stage;
        ring_.advance();
      }
    }
    if (lane_ == 0) ptx::bulk_wait_read();
  }

 private:
  __device__ __forceinline__ void process_tile() {
    tile_ = short_tile(index_, p_);
    rows_end_ = min(tile_.q0 + p_.short_rows, p_.q_len);
    if (p_.kv_lengths.data && tile_.kv_visible < C::kKeys) clear_values();
    ptx::mbarrier_wait(ptx::shared_address(&shared_.qk_full[ring_.stage]), ring_.parity);
#pragma unroll 1
    for (int i = warpgroup_; i < C::kQTiles; i += C::kWarpgroups) {
      top_ = tile_.q0 + 64 * i;
      if (top_ >= rows_end_) break;
      q_ = ptx::shared_address(shared_.stage[ring_.stage].q[i]);
      walk_keys();
      store();
    }
  }

  // Two stages: releases the stage of the tile before this one, and asks for the tile after this one if all other warps
  // have done so. Called some time after the output began to leave, so that the wait is short.
  __device__ __forceinline__ void give_back() {
    if constexpr (C::kStages == 1) return;
    if (leaving_ < 0) return;
    if (lane_ == 0) {
      ptx::bulk_wait_read();
      constexpr unsigned kWarps = 4 * C::kWarpgroups;
      const int next = index_ + static_cast<int>(gridDim.x);
      if (ptx::count_shared(ptx::shared_address(&shared_.done[leaving_]), kWarps) == kWarps - 1 && next < p_.tiles) {
        load_short<C>(shared_, leaving_, maps_, p_, next);
      }
    }
    leaving_ = -1;
  }

  // Key tiles from right to left. A tile that none of the 64 rows sees is left out, except where it is the only one.
  __device__ __forceinline__ void walk_keys() {
    if constexpr (C::kKeyTiles == 1) {
      step<0, true>();
    } else {
      const int last_row = min(top_ + 64, rows_end_) - 1;
      const int last = max(key_range<C>(tile_, p_, last_row).end - 1, 0) / C::kBlockKv;
      const int first = min(last, key_range<C>(tile_, p_, top_).begin / C::kBlockKv);
      if (last == 1) {
        step<1, true>();
      } else {
        begin_empty();
      }
      if (first == 0) step<0, false>();
    }
  }

  __device__ __forceinline__ void begin_empty() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      state_.m[r] = -INFINITY;
      state_.l[r] = 0.f;
    }
#pragma unroll
    for (int i = 0; i < C::kHeadDim / 2; ++i) o_[i] = 0.f;
  }

  template <int Tile, bool First>
  __device__ __forceinline__ void step() {
    using T = ShortTile<C, Tile>;
    constexpr int kFirstKey = Tile * C::kBlockKv;
    float s[T::kBlockKv / 2];
    std::uint32_t weights[T::kBlockKv / 4];
    const ShortStage<C>& stage = shared_.stage[ring_.stage];
    ptx::wgmma_fence();
    multiply_qk<T>(s, ptx::matrix_descriptor(q_, 16, kRowGroupBytes),
                   ptx::matrix_descriptor(ptx::shared_address(stage.k) + kFirstKey * 128, 16, kRowGroupBytes));
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin(s);
    give_back();
    if (top_ + row_ - lane_ / 4 < rows_end_) softmax<kFirstKey, First>(s);  // else no row of the warp exists
    to_operand<Element>(s, weights);
    if constexpr (!First) {
      rescale();
    } else {
#pragma unroll
      for (int i = 0; i < C::kHeadDim / 2; ++i) o_[i] = 0.f;  // for ptxas only; the product overwrites it
    }
    ptx::mbarrier_wait(ptx::shared_address(&shared_.v_full[ring_.stage]), ring_.parity);
    ptx::pin(o_);
    ptx::pin(weights);
    ptx::wgmma_fence();
    multiply_pv<T>(
        o_, weights,
        ptx::matrix_descriptor(ptx::shared_address(stage.v) + kFirstKey * 128, C::kKvPanelBytes, kRowGroupBytes),
        First ? 0 : 1, [] {});
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin(o_);
  }

  // One key tile of online softmax, in place: scores become weights.
  template <int FirstKey, bool First, int N>
  __device__ __forceinline__ void softmax(float (&s)[N]) {
    const bool unmasked =
        key_range<C>(tile_, p_, top_).end >= FirstKey + 2 * N && key_range<C>(tile_, p_, top_ + 63).begin <= FirstKey;
    if (unmasked) {
      advance<SoftmaxStep{.first = First, .guarded = First}>(s);
    } else {
      const KeyRange upper = key_range<C>(tile_, p_, top_ + row_), lower = key_range<C>(tile_, p_, top_ + row_ + 8);
      const int begin[2] = {upper.begin, lower.begin}, end[2] = {upper.end, lower.end};
      mask_outside(s, begin, end, FirstKey + column_);
      advance<SoftmaxStep{.first = First, .guarded = true}>(s);
    }
  }
  template <SoftmaxStep Step, int N>
  __device__ __forceinline__ void advance(float (&s)[N]) {
    float maximum[2], negated[2];
    row_maxima<2>(s, maximum);
    advance_maxima<Step>(maximum, p_.scale_log2, state_, correction_, negated);
    exponentials<Step>(s, p_.scale_log2, negated, state_);
  }

  __device__ __forceinline__ void rescale() {
#pragma unroll
    for (int i = 0; i < C::kHeadDim / 8; ++i) {
      o_[4 * i + 0] *= correction_[0];
      o_[4 * i + 1] *= correction_[0];
      o_[4 * i + 2] *= correction_[1];
      o_[4 * i + 3] *= correction_[1];
    }
  }

  // Rows of v past the end of a sequence may hold anything, and 0 times such a value may be NaN: they are set to 0.
  __device__ __forceinline__ void clear_values() {
    ptx::mbarrier_wait(ptx::shared_address(&shared_.v_full[ring_.stage]), ring_.parity);
    const std::uint32_t values = ptx::shared_address(shared_.stage[ring_.stage].v);
#pragma unroll 1
    for (int panel = 0; panel < C::kPanels; ++panel) {
#pragma unroll 1
      for (int vector = 8 * tile_.kv_visible + static_cast<int>(threadIdx.x); vector < 8 * C::kKeys;
           vector += C::kThreads) {
        ptx::store_shared(values + panel * C::kKvPanelBytes + 16 * vector, make_int4(0, 0, 0, 0));
      }
    }
    ptx::fence_async_shared();
    __syncthreads();
  }

  __device__ __forceinline__ void store() {
    RowResult results[2];
    bool exists[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const RowSums sums{.m = state_.m[r] * p_.scale_log2, .l = quad_sum(state_.l[r]), .a = 0.f, .b = 0.f};
      results[r] = p_.sinks.data ? row_result(sums, sink_of(p_, tile_.head)) : row_result(sums);
      exists[r] = top_ + row_ + 8 * r < rows_end_;
    }
    store_row_values<C>(p_, tile_.sequence, tile_.head, top_ + row_, results, exists, false);

    std::uint32_t pairs[2][C::kHeadDim / 8];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float factor = results[r].factor;
      pack_output_row(r, factor, pairs[r]);
      if (exists[r] && !ptx::all_finite<Element>(pairs[r]) && isfinite(factor)) {
        repair_row<C>(p_, tile_, {tile_.sequence, top_ + row_ + 8 * r, state_.m[r] * p_.scale_log2}, r, column_, o_);
        pack_output_row(r, factor, pairs[r]);
      }
    }
    // The output overwrites the queries, so all warps must be done with them.
    ptx::named_barrier_sync(C::kWarpgroups == 1 ? 1 : 1 + warpgroup_, 128);  // a fixed number reserves fewer barriers
    const int warp_row = row_ - lane_ / 4;
    stage_output<C>(q_ + warp_row * 128, pairs);
    send_output<C>(q_ + warp_row * 128, maps_, p_, tile_, top_ + warp_row, rows_end_);
  }
  __device__ __forceinline__ void pack_output_row(int r, float factor, std::uint32_t (&pairs)[C::kHeadDim / 8]) const {
#pragma unroll
    for (int i = 0; i < C::kHeadDim / 8; ++i) {
      const float* pair = &o_[4 * i + 2 * r];
      pairs[i] = ptx::pack<Element>(pair[0] * factor, pair[1] * factor);
    }
  }

  ShortStorage<C>& shared_;
  const ForwardMaps& maps_;
  const ForwardParams& p_;
  const int warpgroup_, lane_;
  Ring<C::kStages> ring_;
  int index_;         // of the tile
  int leaving_ = -1;  // the stage of the tile before, until it is released; -1: none
  WorkTile tile_;
  int row_, column_;    // of the thread's first score, inside a query tile and a key tile
  int rows_end_, top_;  // one past the tile's last row; the first row of the 64
  std::uint32_t q_;     // the shared memory of the 64 queries
  RowState state_;
  float correction_[2];
  float o_[C::kHeadDim / 2];  // [64, head_dim] of the warpgroup
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kShape.blocks)
    short_kernel(const __grid_constant__ ForwardMaps maps, const __grid_constant__ ForwardParams params) {
  extern __shared__ std::uint8_t dynamic_shared[];
  const std::uint32_t unaligned = ptx::shared_address(dynamic_shared);
  auto& shared = *reinterpret_cast<ShortStorage<C>*>(dynamic_shared + (-unaligned & (kSharedAlignment - 1)));
  const int warp =
      __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);  // tells ptxas that the index is uniform across the warp

  if (threadIdx.x == 0) {
    for (int i = 0; i < C::kStages; ++i) {
      ptx::mbarrier_init(ptx::shared_address(&shared.qk_full[i]), 1);
      ptx::mbarrier_init(ptx::shared_address(&shared.v_full[i]), 1);
      shared.done[i] = 0;
    }
    ptx::mbarrier_init_fence();
    for (int i = 0; i < C::kStages; ++i) {
      const int index = static_cast<int>(blockIdx.x + i * gridDim.x);
      if (index < params.tiles) load_short<C>(shared, i, maps, params, index);
    }
  }
  __syncthreads();
  ShortConsumer<C>(shared, maps, params, warp).run();
}

}  // namespace rootdk::cuda::hopper
