#pragma once

// The products of the backward kernel. Scores are transposed: rows are keys. So weights and gradients of scores are, as
// they come out of one product, the register operands of the next, the gradients of v and k.

#include <cstdint>

#include "cuda/hopper/shared/products.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace rootdk::cuda::hopper {

// s[64 keys, block_q] = keys queries^T; columns of both are contiguous.
template <class C>
__device__ __forceinline__ void multiply_key_query(float (&s)[C::kBlockQ / 2], std::uint64_t keys,
                                                   std::uint64_t queries) {
  using Product = ptx::Wgmma<typename C::Element, C::kBlockQ>;
#pragma unroll
  for (int step = 0; step < C::kHeadDim / 16; ++step) {
    const std::uint64_t a = ptx::advance(keys, (step / 4) * C::kKvPanelBytes + (step % 4) * 32);
    const std::uint64_t b = ptx::advance(queries, (step / 4) * C::kQPanelBytes + (step % 4) * 32);
    if (step == 0) {
      Product::template ss_zero<0, 0>(s, a, b);
    } else {
      Product::template ss<0, 0>(s, a, b);
    }
  }
}

// gradient[64 keys, head_dim] += weights queries, where queries are [query][column]: a transposed operand. 256 columns
// are computed in two halves: ptxas rejects an instruction with more accumulators than a thread has registers at
// launch.
template <class C>
__device__ __forceinline__ void add_weighted_queries(float (&gradient)[C::kHeadDim / 2],
                                                     const std::uint32_t (&weights)[C::kBlockQ / 4],
                                                     std::uint64_t queries) {
  constexpr int kColumns = C::kHeadDim == 256 ? 128 : C::kHeadDim;
  using Product = ptx::Wgmma<typename C::Element, kColumns>;
#pragma unroll
  for (int step = 0; step < C::kBlockQ / 16; ++step) {
#pragma unroll
    for (int column = 0; column < C::kHeadDim; column += kColumns) {
      Product::template rs<1>(reinterpret_cast<float(&)[kColumns / 2]>(gradient[column / 2]), weights[4 * step],
                              weights[4 * step + 1], weights[4 * step + 2], weights[4 * step + 3],
                              ptx::advance(queries, step * 2 * kRowGroupBytes + column / 64 * C::kQPanelBytes));
    }
  }
}

// gradient[64 queries, 64 columns] = grad_scores^T keys (Adds: +=); grad_scores are [key][query], keys [key][column]:
// both are transposed operands, one panel each.
template <class C, bool Adds>
__device__ __forceinline__ void multiply_scores_keys(float (&gradient)[32], std::uint64_t grad_scores,
                                                     std::uint64_t keys) {
  using Product = ptx::Wgmma<typename C::Element, 64>;
#pragma unroll
  for (int step = 0; step < C::kBlockKv / 16; ++step) {
    const std::uint64_t a = ptx::advance(grad_scores, step * 2 * kRowGroupBytes);
    const std::uint64_t b = ptx::advance(keys, step * 2 * kRowGroupBytes);
    if (step == 0 && !Adds) {
      Product::template ss_zero<1, 1>(gradient, a, b);
    } else {
      Product::template ss<1, 1>(gradient, a, b);
    }
  }
}

}  // namespace rootdk::cuda::hopper
