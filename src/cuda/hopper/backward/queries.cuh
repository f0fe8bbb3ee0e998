#pragma once

// The gradient of q in a separate pass, for wide heads: there, adding the sums of key tiles in L2 would take longer
// than computing scores and gradients of weights again. A block has 128 queries of one head and visits the keys they
// see or, with few heads, a part of them. Every sum stays in one thread. If the keys are in parts, `finish` adds the
// partial sums in order.
//   warpgroup 0     one thread loads
//   warpgroup 1, 2  64 queries each, their gradient in registers. For each key tile t (rows are queries):
//     issue S(t+1), dP(t+1) | issue dQ += dS(t) K(t) | wait for S and dP | dS(t+1) from S and dP | wait for dQ

#include <cstddef>

#include "cuda/hopper/backward/gradient_products.cuh"
#include "cuda/hopper/backward/query_blocks.cuh"
#include "cuda/hopper/backward/stores.cuh"
#include "cuda/hopper/shared/logit_terms.cuh"
#include "cuda/hopper/shared/ring.cuh"
#include "cuda/hopper/shared/softmax.cuh"
#include "cuda/ptx/grid_dependency.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/registers.cuh"
#include "cuda/ptx/tma.cuh"

namespace rootdk::cuda::hopper {

template <class C>
struct QueriesStorage {
  alignas(1024) std::uint8_t q[2][C::kQBytes];  // of each warpgroup
  alignas(1024) std::uint8_t grad_out[2][C::kQBytes];
  alignas(1024) std::uint8_t k[2][C::kKvBytes];
  alignas(1024) std::uint8_t v[C::kKvBytes];
  std::uint64_t q_full;
  std::uint64_t k_full[2], k_empty[2];
  std::uint64_t v_full, v_empty;
};
template <class C>
inline constexpr int kQueriesSharedBytes = static_cast<int>(sizeof(QueriesStorage<C>)) + kSharedAlignment;

template <class C>
__device__ __forceinline__ void load_query_block(QueriesStorage<C>& shared, const BackwardMaps& maps,
                                                 const QueryBlock& b) {
  const auto load = [](std::uint8_t* buffer, const CUtensorMap& map, std::uint64_t& full, int row, int head, int entry,
                       std::uint64_t l2_hint) {
#pragma unroll
    for (int panel = 0; panel < C::kPanels; ++panel) {
      ptx::tma_load_4d(ptx::shared_address(buffer) + panel * C::kQPanelBytes, &map, ptx::shared_address(&full),
                       64 * panel, row, head, entry, l2_hint);
    }
  };
  static_assert(C::kQBytes == C::kKvBytes);
  ptx::mbarrier_expect_bytes(ptx::shared_address(&shared.q_full), 4 * C::kQBytes);
  for (int half = 0; half < 2; ++half) {
    load(shared.q[half], maps.q, shared.q_full, b.row0 + 64 * half, b.head, b.entry, ptx::kEvictFirst);
    load(shared.grad_out[half], maps.grad_out, shared.q_full, b.row0 + 64 * half, b.head, b.entry, ptx::kEvictFirst);
  }
  Ring<2> k;
  Ring<1> v;
#pragma unroll 1
  for (int t = 0; t < b.tiles; ++t) {
    const int row = (b.first + t) * C::kBlockKv;
    ptx::mbarrier_wait(ptx::shared_address(&shared.k_empty[k.stage]), k.parity ^ 1);
    ptx::mbarrier_expect_bytes(ptx::shared_address(&shared.k_full[k.stage]), C::kKvBytes);
    load(shared.k[k.stage], maps.k, shared.k_full[k.stage], row, b.kv_head, b.entry, ptx::kEvictLast);
    ptx::mbarrier_wait(ptx::shared_address(&shared.v_empty), v.parity ^ 1);
    ptx::mbarrier_expect_bytes(ptx::shared_address(&shared.v_full), C::kKvBytes);
    load(shared.v, maps.v, shared.v_full, row, b.kv_head, b.entry, ptx::kEvictLast);
    k.advance();
    v.advance();
  }
}

// Registers are full: values needed only at the end are computed again there.
template <class C>
class QueriesConsumer {
  using Element = typename C::Element;
  static constexpr int kScores = C::kBlockKv / 2;

 public:
  __device__ __forceinline__ QueriesConsumer(QueriesStorage<C>& shared, const BackwardParams& params)
      : base_(ptx::shared_address(&shared)), p_(params) {
    const QueryBlock b = query_block<C>(static_cast<int>(blockIdx.x), p_);
    const int row = b.row0 + first_row();
    const std::int64_t plane = std::int64_t{b.entry} * p_.rule.heads + b.head;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool exists = row + 8 * r < p_.rule.q_len;
      const std::int64_t at = plane * p_.queries.tiles * C::kBlockQ + row + 8 * r;
      // Loaded from L2: this kernel has no wait for `prepare`, which would also invalidate values of an earlier call in
      // L1.
      negative_lse_[r] = exists ? __ldcg(&p_.negative_lse[at]) : -INFINITY;
      delta_[r] = exists ? __ldcg(&p_.delta[at]) : 0.f;
    }
    position_ = row + p_.rule.kv_len - p_.rule.q_len;
    key0_ = b.first * C::kBlockKv;
    tiles_ = b.tiles;
  }

  __device__ __forceinline__ void run() {
#pragma unroll
    for (int i = 0; i < C::kHeadDim / 2; ++i) gradient_[i] = 0.f;
    ptx::mbarrier_wait(at(offsetof(Shared, q_full)), 0);
    if (tiles_ > 0) {
      first_grad_scores();
#pragma unroll 1
      for (; tiles_ > 1; --tiles_) step();
      last_step();
    }
    store();
  }

 private:
  using Shared = QueriesStorage<C>;

  __device__ __forceinline__ static int lane() { return threadIdx.x & 31; }
  __device__ __forceinline__ static int half() { return threadIdx.x / 128 - 1; }
  // The thread's first row, inside the block.
  __device__ __forceinline__ static int first_row() { return threadIdx.x / 32 * 16 - 64 + lane() / 4; }

  __device__ __forceinline__ std::uint32_t at(std::size_t offset, int index = 0) const {
    return base_ + static_cast<std::uint32_t>(offset) + 8 * index;
  }
  __device__ __forceinline__ void release(std::size_t offset, int index = 0) const {
    if (lane() == 0) ptx::mbarrier_arrive(at(offset, index));
  }
  __device__ __forceinline__ std::uint64_t operand(std::size_t offset, int tile,
                                                   std::uint32_t leading_bytes = 16) const {
    return ptx::matrix_descriptor(at(offset) + tile * C::kQBytes, leading_bytes, kRowGroupBytes);
  }

  // Issues both products of a key tile.
  __device__ __forceinline__ void multiply(float (&s)[kScores], float (&grad_weights)[kScores], int k_stage) const {
    multiply_key_query<C>(s, operand(offsetof(Shared, q), half()), operand(offsetof(Shared, k), k_stage));
    multiply_key_query<C>(grad_weights, operand(offsetof(Shared, grad_out), half()), operand(offsetof(Shared, v), 0));
    ptx::wgmma_commit();
  }
  __device__ __forceinline__ void add() {
    add_weighted_queries<C>(gradient_, grad_scores_, operand(offsetof(Shared, k), k_.stage, C::kKvPanelBytes));
    ptx::wgmma_commit();
  }
  __device__ __forceinline__ void wait_for_keys(const Ring<2>& k) {
    ptx::mbarrier_wait(at(offsetof(Shared, k_full), k.stage), k.parity);
    ptx::mbarrier_wait(at(offsetof(Shared, v_full)), v_.parity);
    v_.advance();
  }

  __device__ __forceinline__ void first_grad_scores() {
    float s[kScores], grad_weights[kScores];
    wait_for_keys(k_);
    ptx::wgmma_fence();
    multiply(s, grad_weights, k_.stage);
    ptx::wgmma_wait<0>();
    ptx::pin(s);
    ptx::pin(grad_weights);
    release(offsetof(Shared, v_empty));
    to_grad_scores(s, grad_weights);
    to_operand<Element>(s, grad_scores_);
  }

  __device__ __forceinline__ void step() {
    asm volatile("" : "+r"(base_));  // as in BackwardConsumer
    float s[kScores], grad_weights[kScores];
    Ring<2> next = k_;
    next.advance();
    wait_for_keys(next);
    ptx::pin(grad_scores_);
    ptx::pin(gradient_);
    ptx::wgmma_fence();
    multiply(s, grad_weights, next.stage);
    add();
    ptx::wgmma_wait<1>();
    ptx::pin(s);
    ptx::pin(grad_weights);
    release(offsetof(Shared, v_empty));
    key0_ += C::kBlockKv;
    to_grad_scores(s, grad_weights);
    ptx::wgmma_wait<0>();
    ptx::pin(s);
    ptx::pin(grad_scores_);
    ptx::pin(gradient_);
    release(offsetof(Shared, k_empty), k_.stage);
    to_operand<Element>(s, grad_scores_);
    k_ = next;
  }

  __device__ __forceinline__ void last_step() {
    ptx::pin(grad_scores_);
    ptx::pin(gradient_);
    ptx::wgmma_fence();
    add();
    ptx::wgmma_wait<0>();
    ptx::pin(gradient_);
  }

  // s <- the gradients of the scores of the key tile at key0_.
  __device__ __forceinline__ void to_grad_scores(float (&s)[kScores], const float (&grad_weights)[kScores]) const {
    const int begin = position_ - p_.left - key0_;  // the keys that s[0]'s row sees are [begin, end),
    const int end = min(p_.rule.kv_len, position_ + p_.right + 1) - key0_;  // counted from the tile's first
    const int lower_end = min(p_.rule.kv_len, position_ + 8 + p_.right + 1) - key0_;
    if (__any_sync(0xffffffffu, begin + 8 > 0 || end < C::kBlockKv)) {
      const int begins[2] = {begin, begin + 8}, ends[2] = {end, lower_end};
      mask_outside(s, begins, ends, 2 * (lane() & 3));
    }
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const int r = i / 2 % 2;
      const float weight = ptx::exp2_approximate(fmaf(s[i], p_.scale_log2, negative_lse_[r]));
      s[i] = weight * (grad_weights[i] - delta_[r]);
    }
  }

  __device__ __forceinline__ void store() const {
    const QueryBlock b = query_block<C>(static_cast<int>(blockIdx.x), p_);
    const int row0 = b.row0 + 64 * half();
    if (row0 >= p_.rule.q_len) return;
    const int tile = (b.entry * p_.rule.heads + b.head) * p_.queries.tiles + row0 / C::kBlockQ;
    if (!p_.order.rounds) return store_part(b.part * p_.queries.planes * p_.queries.tiles + tile);
    store_gradient<Element, C::kHeadDim>(gradient_, p_.rule.scale, row_of<Element>(p_.grad_q, b.entry, b.head, row0),
                                         p_.grad_q.row_stride, first_row() - 64 * half(), p_.rule.q_len - row0,
                                         p_.rule.head_dim);
    if (!all_finite(gradient_)) p_.suspects[p_.items + tile] = 1;
  }
  // Stores the partial sum in the order of accumulators.
  __device__ __forceinline__ void store_part(int tile) const {
    auto* target =
        reinterpret_cast<float4*>(p_.grad_q_tiles + std::int64_t{tile} * C::kGradQElements) + (threadIdx.x & 127);
#pragma unroll
    for (int c = 0; c < C::kHeadDim / 8; ++c) {
      target[c * 128] = make_float4(gradient_[4 * c], gradient_[4 * c + 1], gradient_[4 * c + 2], gradient_[4 * c + 3]);
    }
  }

  std::uint32_t base_;  // of the shared memory
  const BackwardParams& p_;
  int position_;  // key position of the thread's first row
  int key0_;      // first key of the current tile
  int tiles_;     // key tiles still to come
  float negative_lse_[2], delta_[2];
  Ring<2> k_;
  Ring<1> v_;
  float gradient_[C::kHeadDim / 2];             // [64 queries, head_dim]
  std::uint32_t grad_scores_[C::kBlockKv / 4];  // of the current tile, as operand
};

template <class C>
__global__ void __launch_bounds__(kQueriesThreads, 1)
    queries_kernel(const __grid_constant__ BackwardMaps maps, const __grid_constant__ BackwardParams params) {
  static_assert(kQueriesSharedBytes<C> <= kMostSharedBytes && C::kBlockQ == 64 && C::kBlockKv == 64);
  extern __shared__ std::uint8_t dynamic_shared[];
  const std::uint32_t unaligned = ptx::shared_address(dynamic_shared);
  auto& shared = *reinterpret_cast<QueriesStorage<C>*>(dynamic_shared + (-unaligned & (kSharedAlignment - 1)));
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  if (threadIdx.x == 0) {
    const auto init = [](std::uint64_t& barrier, std::uint32_t arrivals) {
      ptx::mbarrier_init(ptx::shared_address(&barrier), arrivals);
    };
    constexpr int kConsumerWarps = 8;
    init(shared.q_full, 1);
    init(shared.v_full, 1);
    init(shared.v_empty, kConsumerWarps);
    for (int i = 0; i < 2; ++i) {
      init(shared.k_full[i], 1);
      init(shared.k_empty[i], kConsumerWarps);
    }
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  ptx::allow_next_kernel();
  // `keys` lets this kernel start once `prepare` has ended; from then on both share the multiprocessors.
  if (warp < 4) {
    ptx::registers_shrink_to<24>();
    if (threadIdx.x == 0) load_query_block<C>(shared, maps, query_block<C>(static_cast<int>(blockIdx.x), params));
  } else {
    ptx::registers_grow_to<240>();
    QueriesConsumer<C>(shared, params).run();
  }
  if (blockIdx.x + 1 == gridDim.x) ptx::wait_for_previous_kernel();  // `finish` waits for this kernel, and so for both
}

}  // namespace rootdk::cuda::hopper
