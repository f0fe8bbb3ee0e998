#pragma once

// Few queries against many keys. The heads of a group, and all their queries, are the rows of one tile, so that each
// key and value is read once. A block walks one part of the keys of one key head; where there are several parts, each
// leaves its sums and its unnormalised output in the workspace, and merge_kernel joins them in order.

#include "cuda/hopper/decode_config.h"
#include "cuda/hopper/logit_terms.cuh"
#include "cuda/hopper/products.cuh"
#include "cuda/hopper/ring.cuh"
#include "cuda/hopper/row_results.cuh"
#include "cuda/hopper/softmax.cuh"
#include "cuda/hopper/work_tiles.cuh"
#include "cuda/ptx/address.cuh"
#include "cuda/ptx/fence.cuh"
#include "cuda/ptx/grid_dependency.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/named_barrier.cuh"
#include "cuda/ptx/tma.cuh"

namespace rootdk::cuda::hopper {

// The part of one block: key tiles [first, last) of one key head of one sequence.
struct DecodePart {
  int sequence, kv_head, split;
  int kv_visible;
  int first, last;
};

template <class C>
__device__ __forceinline__ DecodePart decode_part(const ForwardParams& p) {
  const int kv_heads = p.heads / p.group;
  DecodePart part;
  part.split = blockIdx.x % p.splits;
  part.kv_head = blockIdx.x / p.splits % kv_heads;
  part.sequence = blockIdx.x / p.splits / kv_heads;
  part.kv_visible = p.kv_lengths.data ? visible_keys(p, part.sequence) : p.kv_len;
  // What the first and the last query see bounds what any sees.
  const int first_position = p.kv_len - p.q_len, last_position = p.kv_len - 1;
  const int begin = max(0, first_position - p.left), end = min(part.kv_visible, last_position + p.right + 1);
  part.first = max(part.split * p.split_tiles, begin / C::kBlockKv);
  part.last = min((part.split + 1) * p.split_tiles, (max(end, 0) + C::kBlockKv - 1) / C::kBlockKv);
  return part;
}

// Brings key and value tiles into the ring: from a contiguous tensor, a tile is a box.
template <class C>
__device__ __forceinline__ void load_keys(DecodeStorage<C>& shared, const ForwardMaps& maps, const DecodePart& part) {
  Ring<C::kStages> ring;
#pragma unroll 1
  for (int j = part.first; j < part.last; ++j) {
    const auto load = [&](const CUtensorMap& map, std::uint8_t* buffer, std::uint64_t& full, std::uint64_t& empty) {
      const std::uint32_t barrier = ptx::shared_address(&full);
      ptx::mbarrier_wait(ptx::shared_address(&empty), ring.parity ^ 1);
      ptx::mbarrier_expect_bytes(barrier, C::kKvBytes);
#pragma unroll
      for (int panel = 0; panel < C::kPanels; ++panel) {
        ptx::tma_load_4d(ptx::shared_address(buffer) + panel * C::kKvPanelBytes, &map, barrier, 64 * panel,
                         j * C::kBlockKv, part.kv_head, part.sequence, ptx::kEvictFirst);
      }
    };
    load(maps.k, shared.k[ring.stage], shared.k_full[ring.stage], shared.k_empty[ring.stage]);
    load(maps.v, shared.v[ring.stage], shared.v_full[ring.stage], shared.v_empty[ring.stage]);
    ring.advance();
  }
}

template <class C>
class DecodeConsumer {
 public:
  using Element = typename C::Element;
  static constexpr int kBlockKv = C::kBlockKv;

  __device__ __forceinline__ DecodeConsumer(DecodeStorage<C>& shared, const ForwardParams& params,
                                            const DecodePart& part)
      : shared_(shared), p_(params), part_(part), lane_(threadIdx.x & 31) {
    rows_ = p_.q_len * p_.group;
    column_ = 2 * (lane_ & 3);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      row_[r] = threadIdx.x / 32 * 16 + lane_ / 4 + 8 * r;
      const int existing = min(row_[r], rows_ - 1);
      query_[r] = existing / p_.group;
      head_[r] = part.kv_head * p_.group + existing % p_.group;
    }
  }

  __device__ __forceinline__ void run() {
    load_queries();
#pragma unroll
    for (int r = 0; r < 2; ++r) state_.m[r] = -INFINITY, state_.l[r] = state_.a[r] = state_.b[r] = 0.f;
#pragma unroll
    for (int i = 0; i < C::kHeadDim / 2; ++i) o_[i] = 0.f;
#pragma unroll 1
    for (int j = part_.first; j < part_.last; ++j) step(j);
    if (p_.splits > 1) {
      store_part();
    } else {
      store_results();
    }
  }

 private:
  // The rows of the tile, gathered from their heads into the swizzled layout that the products read.
  __device__ __forceinline__ void load_queries() {
    const std::uint32_t buffer = ptx::shared_address(shared_.q);
#pragma unroll 1
    for (int chunk = threadIdx.x; chunk < C::kBlockQ * C::kPanels * 8; chunk += C::kConsumerThreads) {
      const int row = chunk / (C::kPanels * 8), column = chunk % (C::kPanels * 8) * 8;
      int4 values = make_int4(0, 0, 0, 0);
      if (row < rows_ && column < p_.head_dim) {
        const int query = row / p_.group, head = part_.kv_head * p_.group + row % p_.group;
        values =
            *reinterpret_cast<const int4*>(static_cast<const Element*>(p_.q.data) + part_.sequence * p_.q.batch_stride +
                                           head * p_.q.head_stride + query * p_.q.row_stride + column);
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
    if (lane_ == 0) ptx::mbarrier_arrive(ptx::shared_address(&shared_.k_empty[ring_.stage]));
    softmax(j);
    ptx::mbarrier_wait(v_full, ring_.parity);
    clear_past_end(j);
    ptx::pin(o_);
    ptx::pin(weights_);
    ptx::wgmma_fence();
    multiply_pv<C>(
        o_, weights_,
        ptx::matrix_descriptor(ptx::shared_address(shared_.v[ring_.stage]), C::kKvPanelBytes, kRowGroupBytes), [] {});
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin(o_);
    if (lane_ == 0) ptx::mbarrier_arrive(ptx::shared_address(&shared_.v_empty[ring_.stage]));
    ring_.advance();
  }

  __device__ __forceinline__ TilePlace place(int j) const {
    const int offset = p_.kv_len - p_.q_len;
    return {.sequence = part_.sequence,
            .head = {head_[0], head_[1]},
            .row = {query_[0], query_[1]},
            .position = {query_[0] + offset, query_[1] + offset},
            .column = j * kBlockKv + column_,
            .q_len = p_.q_len,
            .kv_len = p_.kv_len};
  }

  __device__ __forceinline__ void softmax(int j) {
    constexpr SoftmaxStep kStep{.first = false, .guarded = true, .statistics = true};
    const TilePlace tile = place(j);
    scores_to_logits<Element, Terms::any>(s_, tile, p_);
    mask(tile, j);
    float maximum[2], negated[2], correction[2];
    row_maxima<2>(s_, maximum);
    advance_maxima<kStep>(maximum, 1.f, state_, correction, negated);
    exponentials<kStep>(s_, 1.f, negated, state_);
    if (p_.terms.dropout_threshold) drop(s_, tile, p_.terms);
    to_operand<Element>(s_, weights_);
#pragma unroll
    for (int i = 0; i < C::kHeadDim / 2; ++i) o_[i] *= correction[i / 2 % 2];
  }

  __device__ __forceinline__ void mask(const TilePlace& tile, int j) {
    const int first_position = p_.kv_len - p_.q_len;
    const bool inside = j * kBlockKv >= p_.kv_len - 1 - p_.left &&
                        (j + 1) * kBlockKv <= min(part_.kv_visible, first_position + p_.right + 1);
    if (inside) return;
    int begin[2], end[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      begin[r] = max(0, tile.position[r] - p_.left);
      end[r] = min(part_.kv_visible, tile.position[r] + p_.right + 1);
    }
    mask_outside(s_, begin, end, tile.column);
  }

  // Values past the end of a sequence may be anything, and 0 times NaN is NaN.
  __device__ __forceinline__ void clear_past_end(int j) {
    const int kept = part_.kv_visible - j * kBlockKv;
    if (!p_.kv_lengths.data || kept >= kBlockKv) return;
    const std::uint32_t buffer = ptx::shared_address(shared_.v[ring_.stage]);
#pragma unroll 1
    for (int panel = 0; panel < C::kPanels; ++panel) {
#pragma unroll 1
      for (int chunk = 8 * kept + threadIdx.x; chunk < 8 * kBlockKv; chunk += C::kConsumerThreads) {
        ptx::store_shared(buffer + panel * C::kKvPanelBytes + 16 * chunk, make_int4(0, 0, 0, 0));
      }
    }
    ptx::fence_async_shared();
    ptx::named_barrier_sync(1, C::kConsumerThreads);
  }

  __device__ __forceinline__ RowSums row_sums(int r) const {
    return {state_.m[r], quad_sum(state_.l[r]), quad_sum(state_.a[r]), quad_sum(state_.b[r])};
  }

  // Sums and unnormalised output of this part.
  __device__ __forceinline__ void store_part() const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const RowSums sums = row_sums(r);
      if (row_[r] >= rows_) continue;
      const std::int64_t index = partial_row(p_, part_.split, part_.sequence, head_[r], query_[r]);
      if ((lane_ & 3) == 0) p_.partial_sums[index] = make_float4(sums.m, sums.l, sums.a, sums.b);
      float* out = p_.partial_out + index * p_.value_dim;
#pragma unroll
      for (int i = 0; i < C::kHeadDim / 8; ++i) {
        const int column = 8 * i + column_;
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
      if (row_[r] >= rows_) continue;
      const RowResult result = row_result(sums, sink_of(p_, head_[r]));
      if ((lane_ & 3) == 0) store_row_results(p_, result, part_.sequence, head_[r], query_[r]);
      const float factor = result.factor * p_.terms.dropout_keep_scale;
      Element* out = output_row<Element>(p_, part_.sequence, head_[r], query_[r]);
#pragma unroll
      for (int i = 0; i < C::kHeadDim / 8; ++i) {
        const int column = 8 * i + column_;
        if (column < p_.value_dim) {
          *reinterpret_cast<std::uint32_t*>(out + column) =
              ptx::pack<Element>(o_[4 * i + 2 * r] * factor, o_[4 * i + 2 * r + 1] * factor);
        }
      }
    }
  }

  DecodeStorage<C>& shared_;
  const ForwardParams& p_;
  const DecodePart& part_;
  const int lane_;
  int rows_;
  int row_[2], query_[2], head_[2];
  int column_;
  Ring<C::kStages> ring_;
  RowState state_;
  float o_[C::kHeadDim / 2];
  float s_[C::kBlockKv / 2];
  std::uint32_t weights_[C::kBlockKv / 4];
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocksPerMultiprocessor)
    decode_kernel(const __grid_constant__ ForwardMaps maps, const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(kSharedAlignment) std::uint8_t dynamic_shared[];
  auto& shared = *reinterpret_cast<DecodeStorage<C>*>(dynamic_shared);
  const DecodePart part = decode_part<C>(params);
  ptx::allow_next_kernel();  // the merge waits for our end by itself
  if (threadIdx.x == C::kConsumerThreads) {
    ptx::tma_prefetch_map(&maps.k);
    ptx::tma_prefetch_map(&maps.v);
    for (int i = 0; i < C::kStages; ++i) {
      ptx::mbarrier_init(ptx::shared_address(&shared.k_full[i]), 1);
      ptx::mbarrier_init(ptx::shared_address(&shared.v_full[i]), 1);
      ptx::mbarrier_init(ptx::shared_address(&shared.k_empty[i]), C::kConsumerThreads / 32);
      ptx::mbarrier_init(ptx::shared_address(&shared.v_empty[i]), C::kConsumerThreads / 32);
    }
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  if (warp == C::kConsumerThreads / 32) {
    if (threadIdx.x == C::kConsumerThreads) load_keys<C>(shared, maps, part);
  } else {
    DecodeConsumer<C>(shared, params, part).run();
  }
}

// Joins the parts of every row, in order: a warp a row.
template <class Element>
__global__ void __launch_bounds__(kDecodeMergeThreads) merge_kernel(const __grid_constant__ ForwardParams p) {
  const int rows = p.sequences * p.heads * p.q_len;
  const int row = blockIdx.x * (kDecodeMergeThreads / 32) + threadIdx.x / 32, lane = threadIdx.x & 31;
  if (row >= rows) return;
  const int query = row % p.q_len, head = row / p.q_len % p.heads, sequence = row / p.q_len / p.heads;
  ptx::wait_for_previous_kernel();
  float top = -INFINITY;
  for (int split = 0; split < p.splits; ++split) {
    top = fmaxf(top, p.partial_sums[static_cast<std::int64_t>(split) * rows + row].x);
  }
  RowSums sums{top, 0.f, 0.f, 0.f};
  float out[8] = {};  // columns lane, lane + 32, ...
  for (int split = 0; split < p.splits; ++split) {
    const std::int64_t index = static_cast<std::int64_t>(split) * rows + row;
    const float4 part = p.partial_sums[index];
    if (part.y == 0.f) continue;  // it saw no key
    const float shift = part.x - top, share = ptx::exp2_approximate(shift);
    sums.l = fmaf(share, part.y, sums.l);
    sums.a = fmaf(share, fmaf(shift, part.y, part.z), sums.a);
    sums.b = fmaf(share * share, part.w, sums.b);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (lane + 32 * i < p.value_dim) out[i] = fmaf(share, p.partial_out[index * p.value_dim + lane + 32 * i], out[i]);
    }
  }
  const RowResult result = row_result(sums, sink_of(p, head));
  if (lane == 0) store_row_results(p, result, sequence, head, query);
  const float factor = result.factor * p.terms.dropout_keep_scale;
  Element* to = output_row<Element>(p, sequence, head, query);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (lane + 32 * i < p.value_dim) to[lane + 32 * i] = static_cast<Element>(out[i] * factor);
  }
}

}  // namespace rootdk::cuda::hopper
