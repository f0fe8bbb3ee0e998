#pragma once

// Exact fused attention backward for Hopper, with the same bits every run.
//
//   prepare   out . grad_out and -lse of every row; clears the counters (rows.cuh)
//   keys      gradients of k and v, and of q for most heads. A work item is 128 or 64 keys of one head with all query
//             tiles that see them; persistent blocks draw items (this file)
//   queries   for wide heads: the gradient of q, on multiprocessors that `keys` does not use (queries.cuh)
//   finish    adds up gradients of q that have several partial sums; repairs what is not finite (rows.cuh)
//
// A block of `keys` has four warpgroups, which synchronise only through barriers in shared memory, so that the
// exponentials of one overlap with the products of the others:
//   0     one warp loads (producer.cuh), two threads send gradients of q to memory (grad_q.cuh)
//   1, 2  64 keys each, gradients of k and v in registers (consumer.cuh); for wide heads and rich logits
//         the same 64 keys, one with the gradient of v, the other with that of k (split.cuh)
//   3     the gradient of q from the gradients of scores, over all keys of the item (grad_q.cuh)
// Gradients of k and v are summed inside one block. Gradients of q are added in a fixed order of key tiles (tiles.cuh),
// so that no sum depends on timing. README.md in this folder walks through the stages.

#include "cuda/hopper/backward/consumer.cuh"
#include "cuda/hopper/backward/grad_q.cuh"
#include "cuda/hopper/backward/producer.cuh"
#include "cuda/hopper/backward/split.cuh"
#include "cuda/ptx/grid_dependency.cuh"
#include "cuda/ptx/registers.cuh"

namespace rootdk::cuda::hopper {

template <class C>
__device__ __forceinline__ void init_barriers(BackwardStorage<C>& shared) {
  // Usually one lane arrives for its warp. All lanes arrive where every lane itself has read or written the data,
  // without the copy engine or the tensor cores.
  constexpr int kConsumerWarps = 8, kGradQWarps = 4, kSenders = 2, kSplitWarps = 4;
  constexpr int kTileReaders =
      32 * (kConsumerWarps + (C::kTwoPasses ? 0 : kGradQWarps)) + (C::kTwoPasses ? 0 : kSenders);
  const auto init = [](std::uint64_t& barrier, int arrivals) {
    ptx::mbarrier_init(ptx::shared_address(&barrier), static_cast<std::uint32_t>(arrivals));
  };
  for (int i = 0; i < C::kKeyStages; ++i) {
    init(shared.k_full[i], 1);
    init(shared.k_empty[i], kTileReaders);
  }
  init(shared.v_full, 1);
  init(shared.v_empty, C::kSplit ? kSplitWarps : kConsumerWarps);
  for (int i = 0; i < C::kStages; ++i) {
    init(shared.q_full[i], 1);
    init(shared.q_empty[i], kConsumerWarps);
    init(shared.grad_scores_full[i], C::kSplit ? kSplitWarps : kConsumerWarps);
    init(shared.grad_scores_empty[i], kGradQWarps);
  }
  for (int i = 0; i < C::kGradOutStages; ++i) {
    init(shared.grad_out_full[i], 1);
    init(shared.grad_out_empty[i], kConsumerWarps);
  }
  for (std::uint64_t& barrier : shared.grad_q_empty) init(barrier, 1);
  for (auto& parts : shared.grad_q_full) {
    for (std::uint64_t& barrier : parts) init(barrier, kGradQWarps);
  }
  init(shared.landed, 1);
  if constexpr (C::kSplit) {
    init(shared.exchange.full, 32 * kSplitWarps);
    init(shared.exchange.empty, 32 * kSplitWarps);
  }
  ptx::mbarrier_init_fence();
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    backward_kernel(const __grid_constant__ BackwardMaps maps, const __grid_constant__ BackwardParams params) {
  static_assert(kBackwardSharedBytes<C> <= kMostSharedBytes);
  extern __shared__ std::uint8_t dynamic_shared[];
  const std::uint32_t unaligned = ptx::shared_address(dynamic_shared);
  auto& shared = *reinterpret_cast<BackwardStorage<C>*>(dynamic_shared + (-unaligned & (kSharedAlignment - 1)));
  const int warp =
      __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);  // tells ptxas that the index is uniform across the warp

  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : {&maps.q, &maps.k, &maps.v, &maps.grad_out}) ptx::tma_prefetch_map(map);
    init_barriers(shared);
  }
  __syncthreads();
  ptx::wait_for_previous_kernel();  // `prepare`
  ptx::allow_next_kernel();         // not earlier: `queries` needs the results of `prepare`

  if (warp < 4) {
    ptx::registers_shrink_to<C::kServiceRegisters>();
    if (warp == 0) {
      BackwardProducer<C>(shared, maps, params).run();
    } else if constexpr (!C::kTwoPasses) {
      if (warp < 3 && (threadIdx.x & 31) == 0) GradQSender<C>(shared, params, warp - 1).run();
    }
  } else if (warp < 12) {
    ptx::registers_grow_to<C::kConsumerRegisters>();
    if constexpr (C::kSplit) {
      if (warp < 8) {
        GradVWarpgroup<C>(shared, params).run();
      } else {
        GradKWarpgroup<C>(shared, params).run();
      }
    } else {
      BackwardConsumer<C>(shared, params).run();
    }
  } else if constexpr (!C::kTwoPasses) {
    ptx::registers_shrink_to<C::kGradQRegisters>();
    GradQWarpgroup<C>(shared, params).run();
  }
}

}  // namespace rootdk::cuda::hopper
