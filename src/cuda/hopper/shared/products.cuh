#pragma once

// The two products of forward and decode, q k^T and weights v, on tiles in shared memory. A tile is stored as panels of
// 64 columns.

#include <cstdint>

#include "cuda/ptx/wgmma.cuh"

namespace rootdk::cuda::hopper {

// Bytes from one group of 8 rows to the next, under the 128-byte swizzle.
inline constexpr std::uint32_t kRowGroupBytes = 1024;

// s[64, block_kv] = q k^T. Columns of both are contiguous: an instruction multiplies 32 bytes of a 128-byte row, and
// the next 128 bytes of columns are in the next panel.
template <class C>
__device__ __forceinline__ void multiply_qk(float (&s)[C::kBlockKv / 2], std::uint64_t q, std::uint64_t k) {
  using Product = ptx::Wgmma<typename C::Element, C::kBlockKv>;
#pragma unroll
  for (int step = 0; step < C::kHeadDim * static_cast<int>(sizeof(typename C::Element)) / 32; ++step) {
    const std::uint64_t a = ptx::advance(q, (step / 4) * C::kQPanelBytes + (step % 4) * 32);
    const std::uint64_t b = ptx::advance(k, (step / 4) * C::kKvPanelBytes + (step % 4) * 32);
    if (step == 0) {
      Product::template ss_zero<0, 0>(s, a, b);
    } else {
      Product::template ss<0, 0>(s, a, b);
    }
  }
}

// o[64, head_dim] += weights v, where v is [key][column]: a transposed operand, 16 keys are 2048 bytes. keep = 0: o is
// overwritten instead. `pass` is called early_token instructions before the last one.
template <class C, class Element = typename C::Element, class Pass>
__device__ __forceinline__ void multiply_pv(float (&o)[C::kHeadDim / 2],
                                            const std::uint32_t (&weights)[C::kBlockKv / 4], std::uint64_t v, int keep,
                                            Pass pass) {
  using Product = ptx::Wgmma<Element, C::kHeadDim>;
  constexpr int kSteps = C::kBlockKv / 16;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (step == kSteps - C::kTuning.early_token) pass();
    Product::template rs<1>(o, weights[4 * step], weights[4 * step + 1], weights[4 * step + 2], weights[4 * step + 3],
                            ptx::advance(v, step * 2 * kRowGroupBytes), step == 0 ? keep : 1);
  }
  if (C::kTuning.early_token == 0) pass();
}

// The same in e4m3, where v is [column][key], in panels of 64 or 32 keys, so many bytes a row, under the
// swizzle of that width.
template <class C, class Pass>
__device__ __forceinline__ void multiply_pv_by_columns(float (&o)[C::kHeadDim / 2],
                                                       const std::uint32_t (&weights)[C::kBlockKv / 8], std::uint64_t v,
                                                       int keep, Pass pass) {
  using Product = ptx::Wgmma<typename C::Element, C::kHeadDim>;
  constexpr int kSteps = C::kBlockKv / 32;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (step == kSteps - C::kTuning.early_token) pass();
    Product::template rs<0>(
        o, weights[4 * step], weights[4 * step + 1], weights[4 * step + 2], weights[4 * step + 3],
        ptx::advance(v, 32 * step / C::kVPanelKeys * C::kHeadDim * C::kVPanelKeys + 32 * step % C::kVPanelKeys),
        step == 0 ? keep : 1);
  }
  if (C::kTuning.early_token == 0) pass();
}

}  // namespace rootdk::cuda::hopper
