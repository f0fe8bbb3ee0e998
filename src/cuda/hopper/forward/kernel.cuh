#pragma once

// Exact fused attention forward for Hopper.
//
// A block has one producer warpgroup, of which one thread issues the copies, and two or three consumer warpgroups of 64
// query rows each. Blocks are persistent: they process query tiles one after another. Key tiles are visited from right
// to left, so that tiles which need a mask come first (and last, with a window) and the loop over all others has no
// mask code. README.md in this folder walks through the stages.

#include "cuda/hopper/forward/config.h"
#include "cuda/hopper/forward/consumer.cuh"
#include "cuda/hopper/forward/producer.cuh"
#include "cuda/ptx/address.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/registers.cuh"
#include "cuda/ptx/tma.cuh"

namespace rootdk::cuda::hopper {

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    forward_kernel(const __grid_constant__ ForwardMaps maps, const __grid_constant__ ForwardParams params) {
  extern __shared__ std::uint8_t dynamic_shared[];
  const std::uint32_t unaligned = ptx::shared_address(dynamic_shared);
  auto& shared = *reinterpret_cast<SharedStorage<C>*>(dynamic_shared + (-unaligned & (kSharedAlignment - 1)));
  const int warp =
      __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);  // tells ptxas that the index is uniform across the warp

  if (threadIdx.x == 0) {
    ptx::tma_prefetch_map(&maps.q);
    ptx::tma_prefetch_map(&maps.k);
    ptx::tma_prefetch_map(&maps.v);
    if constexpr (C::kStagedOutput) ptx::tma_prefetch_map(&maps.out);
    constexpr int kConsumerWarps = 4 * C::kConsumers;  // each warp waits for its part of a product and arrives once
    for (int i = 0; i < C::kQStages; ++i) {
      ptx::mbarrier_init(ptx::shared_address(&shared.q_full[i]), 1);
      ptx::mbarrier_init(ptx::shared_address(&shared.q_empty[i]), kConsumerWarps);
    }
    for (int i = 0; i < C::kStages; ++i) {
      ptx::mbarrier_init(ptx::shared_address(&shared.k_full[i]), 1);
      ptx::mbarrier_init(ptx::shared_address(&shared.v_full[i]), 1);
      ptx::mbarrier_init(ptx::shared_address(&shared.k_empty[i]), kConsumerWarps);
      ptx::mbarrier_init(ptx::shared_address(&shared.v_empty[i]), kConsumerWarps);
    }
    ptx::mbarrier_init_fence();
  }
  __syncthreads();

  if (warp < 4) {
    ptx::registers_shrink_to<C::kProducerRegisters>();
    if (threadIdx.x == 0) Producer<C>(shared, maps, params).run();
  } else {
    ptx::registers_grow_to<C::kConsumerRegisters>();
    Consumer<C>(shared, maps, params, warp).run();
  }
}

}  // namespace rootdk::cuda::hopper
