#pragma once

// Decode: few queries against many keys. The heads of a group, and all their queries, are the rows of one tile, so that
// each key and value is loaded once. A block processes one part of the keys of one key head; over a cache, one or more
// chunks. If a row has several parts, or needs repair (repair.cuh), each part's sums and unnormalised output go to the
// workspace, and merge_kernel or merge_and_repair_kernel merges them in order. README.md in this folder walks through
// the stages.

#include "cuda/hopper/decode/config.h"
#include "cuda/hopper/decode/merge.cuh"
#include "cuda/hopper/decode/part.cuh"
#include "cuda/hopper/decode/producer.cuh"
#include "cuda/hopper/decode/rows.cuh"
#include "cuda/hopper/shared/products.cuh"
#include "cuda/hopper/shared/ring.cuh"
#include "cuda/hopper/shared/row_results.cuh"
#include "cuda/hopper/shared/softmax.cuh"
#include "cuda/ptx/address.cuh"
#include "cuda/ptx/fence.cuh"
#include "cuda/ptx/grid_dependency.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/named_barrier.cuh"
#include "cuda/ptx/tma.cuh"

namespace rootdk::cuda::hopper {

template <class C>
class DecodeConsumer {
 public:
  using Element = typename C::Element;
  static constexpr int kBlockKv = C::kBlockKv;

  __device__ __forceinline__ DecodeConsumer(DecodeStorage<C>& shared, const ForwardParams& params,
                                            const DecodePart& part)
      : shared_(shared),
        p_(params),
        part_(part),
        lane_(threadIdx.x & 31),
        idle_(static_cast<int>(threadIdx.x) / 32 * 16 >= part.rows),
        rows_(part, params, static_cast<int>(threadIdx.x) / 32 * 16 + lane_ / 4, 8) {}

  __device__ __forceinline__ void run() {
    load_queries();
    walk_parts<C>(
        part_, p_, [&](int) { begin_part(); }, [&](int j) { step(j); },
        [&](int index) {
          if (p_.partial_sums) {
            store_part(index);
          } else {
            store_results();
          }
        });
  }

 private:
  __device__ __forceinline__ void begin_part() {
#pragma unroll
    for (int r = 0; r < 2; ++r) state_.m[r] = -INFINITY, state_.l[r] = state_.a[r] = state_.b[r] = 0.f;
#pragma unroll
    for (int i = 0; i < C::kHeadDim / 2; ++i) o_[i] = 0.f;
  }

  // Gathers the rows of the tile from their heads, in the swizzled layout that the products need.
  __device__ __forceinline__ void load_queries() {
    const std::uint32_t buffer = ptx::shared_address(shared_.q);
#pragma unroll 1
    for (int vector = threadIdx.x; vector < C::kBlockQ * C::kPanels * 8; vector += C::kConsumerThreads) {
      const int row = vector / (C::kPanels * 8), column = vector % (C::kPanels * 8) * 8;
      int4 values = make_int4(0, 0, 0, 0);
      if (row < part_.rows && column < p_.head_dim) {
        values = *reinterpret_cast<const int4*>(query_row<Element>(p_, part_, row_in(part_, p_, row)) + column);
      }
      const int panel = column / 64, sixteenth = (column % 64 / 8) ^ (row & 7);
      ptx::store_shared(buffer + panel * C::kQPanelBytes + row * 128 + sixteenth * 16, values);
    }
    ptx::fence_async_shared();
    ptx::named_barrier_sync(1, C::kConsumerThreads);
  }

  __device__ __forceinline__ void step(int j) {
    const std::uint32_t k_full = ptx::shared_address(&shared_.k_full[ring_.stage]);
    const std::uint32_t v_full = ptx::shared_address(&shared_.v_full[ring_.stage]);
    ptx::mbarrier_wait(k_full, ring_.parity);
    ptx::wgmma_fence();
    multiply_qk<C>(s_, ptx::matrix_descriptor(ptx::shared_address(shared_.q), 16, kRowGroupBytes),
                   ptx::matrix_descriptor(ptx::shared_address(shared_.k[ring_.stage]), 16, kRowGroupBytes));
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin(s_);
    release(shared_.k_empty[ring_.stage]);
    if (!idle_) softmax(j);
    ptx::mbarrier_wait(v_full, ring_.parity);
    clear_unseen(j);
    to_operand<Element>(s_, weights_);
    ptx::pin(o_);
    ptx::pin(weights_);
    ptx::wgmma_fence();
    multiply_pv<C>(
        o_, weights_,
        ptx::matrix_descriptor(ptx::shared_address(shared_.v[ring_.stage]), C::kKvPanelBytes, kRowGroupBytes), 1,
        [] {});
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin(o_);
    release(shared_.v_empty[ring_.stage]);
    ring_.advance();
  }

  // This warp is done with a tile.
  __device__ __forceinline__ void release(std::uint64_t& empty) const {
    if (lane_ == 0) ptx::mbarrier_arrive(ptx::shared_address(&empty));
  }

  __device__ __forceinline__ void softmax(int j) {
    constexpr SoftmaxStep kStep{.first = false, .guarded = true, .statistics = true};
    const TileCoordinates tile = rows_.coordinates(part_, p_, j * kBlockKv + column());
    scores_to_logits<Element, Terms::any>(s_, tile, p_);
    mask_unseen(s_, part_, p_, tile, j * kBlockKv, kBlockKv);
    float maximum[2], negated[2], correction[2];
    row_maxima<2>(s_, maximum);
    advance_maxima<kStep>(maximum, 1.f, state_, correction, negated);
    exponentials<kStep>(s_, 1.f, negated, state_);
    if (p_.terms.dropout_threshold) drop(s_, tile, p_.terms);
#pragma unroll
    for (int i = 0; i < C::kHeadDim / 2; ++i) o_[i] *= correction[i / 2 % 2];
  }

  // Values that no row sees may be NaN, and 0 times NaN is NaN: they are set to 0.
  __device__ __forceinline__ void clear_unseen(int j) {
    if (all_see(part_, p_, j * kBlockKv, (j + 1) * kBlockKv)) return;
    const std::uint32_t buffer = ptx::shared_address(shared_.v[ring_.stage]);
#pragma unroll 1
    for (int vector = threadIdx.x; vector < 8 * kBlockKv; vector += C::kConsumerThreads) {
      const int key = j * kBlockKv + vector / 8;
      if (any_sees(part_, p_, key, key + 1)) continue;
#pragma unroll 1
      for (int panel = 0; panel < C::kPanels; ++panel) {
        ptx::store_shared(buffer + panel * C::kKvPanelBytes + 16 * vector, make_int4(0, 0, 0, 0));
      }
    }
    ptx::fence_async_shared();
    ptx::named_barrier_sync(1, C::kConsumerThreads);
  }

  __device__ __forceinline__ RowSums row_sums(int r) const {
    return {state_.m[r], quad_sum(state_.l[r]), quad_sum(state_.a[r]), quad_sum(state_.b[r])};
  }

  // Stores the sums and the unnormalised output of one part. If the row saw none of its keys, there is no output.
  __device__ __forceinline__ void store_part(int index) const {
    const std::int64_t first = partial_rows(p_, index, part_.tile, part_.kv_head);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const RowSums sums = row_sums(r);
      if (!rows_.exists(part_, r)) continue;
      const std::int64_t row = first + rows_.row[r];
      if ((lane_ & 3) == 0) p_.partial_sums[row] = make_float4(sums.m, sums.l, sums.a, sums.b);
      if (sums.l == 0.f) continue;
      float* out = p_.partial_out + row * p_.value_dim;
#pragma unroll
      for (int i = 0; i < C::kHeadDim / 8; ++i) {
        const int column = 8 * i + this->column();
        if (column < p_.value_dim) {
          *reinterpret_cast<float2*>(out + column) = make_float2(o_[4 * i + 2 * r], o_[4 * i + 2 * r + 1]);
        }
      }
    }
  }

  __device__ __forceinline__ void store_results() const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const RowSums sums = row_sums(r);
      if (!rows_.exists(part_, r)) continue;
      const QueryHead at = rows_.at[r];
      const RowResult result = row_result(sums, sink_of(p_, at.head));
      const int row = part_.row + at.query;
      if ((lane_ & 3) == 0) store_row_results(p_, result, part_.batch, at.head, row);
      const float factor = result.factor * p_.terms.dropout_keep_scale;
      Element* out = output_row<Element>(p_, part_.batch, at.head, row);
#pragma unroll
      for (int i = 0; i < C::kHeadDim / 8; ++i) {
        const int column = 8 * i + this->column();
        if (column < p_.value_dim) {
          *reinterpret_cast<std::uint32_t*>(out + column) =
              ptx::pack<Element>(o_[4 * i + 2 * r] * factor, o_[4 * i + 2 * r + 1] * factor);
        }
      }
    }
  }

  // This thread's first column in each group of eight accumulator columns.
  __device__ __forceinline__ int column() const { return 2 * (lane_ & 3); }

  DecodeStorage<C>& shared_;
  const ForwardParams& p_;
  const DecodePart& part_;
  const int lane_;
  const bool idle_;  // no row of this warp exists: it only takes part in the products, whose results are unused
  const ThreadRows rows_;
  Ring<C::kStages> ring_;
  RowState state_;
  float o_[C::kHeadDim / 2];
  float s_[C::kBlockKv / 2];
  std::uint32_t weights_[C::kBlockKv / 4];
};

template <class C>
__device__ __forceinline__ void init_barriers(DecodeStorage<C>& shared) {
  constexpr int kConsumerWarps = C::kConsumerThreads / 32;
  for (int i = 0; i < C::kStages; ++i) {
    ptx::mbarrier_init(ptx::shared_address(&shared.k_full[i]), 1);
    ptx::mbarrier_init(ptx::shared_address(&shared.v_full[i]), 1);
    ptx::mbarrier_init(ptx::shared_address(&shared.k_empty[i]), kConsumerWarps);
    ptx::mbarrier_init(ptx::shared_address(&shared.v_empty[i]), kConsumerWarps);
  }
  ptx::mbarrier_init_fence();
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocksPerMultiprocessor)
    decode_kernel(const __grid_constant__ ForwardMaps maps, const __grid_constant__ ForwardParams params,
                  const __grid_constant__ CacheKeys cache) {
  extern __shared__ __align__(kSharedAlignment) std::uint8_t dynamic_shared[];
  auto& shared = *reinterpret_cast<DecodeStorage<C>*>(dynamic_shared);
  const DecodePart& part = shared.part;
  ptx::allow_next_kernel();  // the merge kernel waits for the end of this one
  if (threadIdx.x == C::kConsumerThreads) {
    ptx::tma_prefetch_map(&maps.k);
    ptx::tma_prefetch_map(&maps.v);
    init_barriers(shared);
  }
  ptx::wait_for_previous_kernel();  // over a cache it uploads the page tables
  if (threadIdx.x == C::kConsumerThreads) shared.part = decode_part<C>(params, cache);
  __syncthreads();
  if (threadIdx.x < C::kConsumerThreads) {
    DecodeConsumer<C>(shared, params, part).run();
  } else if constexpr (C::kCached) {
    load_pages<C>(shared, maps, params, cache, part);
  } else {
    if (threadIdx.x == C::kConsumerThreads) load_tensor<C>(shared, maps, params, part);
  }
}

// The kernels as the launch code sees them.
template <class C>
DecodeKernel describe_decode() {
  return {.function = reinterpret_cast<const void*>(&decode_kernel<C>),
          .merge = reinterpret_cast<const void*>(&merge_kernel<typename C::Element>),
          .merge_and_repair = reinterpret_cast<const void*>(&merge_and_repair_kernel<typename C::Element>),
          .head_dim = C::kHeadDim,
          .block_kv = C::kBlockKv,
          .rows = C::kBlockQ,
          .blocks_per_multiprocessor = C::kBlocksPerMultiprocessor,
          .threads = C::kThreads,
          .shared_bytes = static_cast<int>(sizeof(DecodeStorage<C>))};
}

}  // namespace rootdk::cuda::hopper
