#pragma once

// How gradients are stored: from f32 accumulators to rows of 16-bit elements.

#include "cuda/hopper/backward/params.h"
#include "cuda/hopper/shared/logit_terms.cuh"
#include "cuda/ptx/arithmetic.cuh"

namespace rootdk::cuda::hopper {

template <class Element>
__device__ __forceinline__ Element* row_of(const DeviceTensor& tensor, int entry, int head, int row) {
  return static_cast<Element*>(tensor.data) + entry * tensor.batch_stride + head * tensor.head_stride +
         row * tensor.row_stride;
}

// Stores a 64 x HeadDim accumulator, times a factor, as 16-bit rows. row: the thread's row of r = 0. Rows from `rows`
// on and columns from `columns` on are not written. The quad exchanges its parts, so that every thread stores 16
// contiguous bytes.
template <class Element, int HeadDim>
__device__ __forceinline__ void store_gradient(const float (&gradient)[HeadDim / 2], float factor, Element* first,
                                               std::int64_t row_stride, int row, int rows, int columns) {
  const int quad = threadIdx.x & 3;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    Element* out = first + (row + 8 * r) * row_stride + 8 * quad;
#pragma unroll
    for (int group = 0; group < HeadDim / 32; ++group) {
      std::uint32_t pairs[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float* pair = &gradient[16 * group + 4 * c + 2 * r];
        pairs[c] = ptx::pack<Element>(pair[0] * factor, pair[1] * factor);
      }
      quad_transpose(pairs, quad);
      if (row + 8 * r < rows && 32 * group + 8 * quad < columns) {
        *reinterpret_cast<uint4*>(out + 32 * group) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
      }
    }
  }
}

template <int N>
__device__ __forceinline__ bool all_finite(const float (&values)[N]) {
  float probe[4] = {};  // NaN if any value is not finite
#pragma unroll
  for (int i = 0; i < N; ++i) probe[i % 4] = fmaf(values[i], 0.f, probe[i % 4]);
  return (probe[0] + probe[1]) + (probe[2] + probe[3]) == 0.f;
}

// The index of a row in its tensor.
struct RowCoordinates {
  int entry, head, row;
};

// Stores a part of the gradient of q, as thread `thread` of 128 holds it. first: the tile's first row; rows: how many
// rows of the tile exist.
template <class C>
__device__ __forceinline__ void store_grad_q_part(const float (&gradient)[32], const BackwardParams& p,
                                                  const RowCoordinates& first, int rows, int part, int thread) {
  using Element = typename C::Element;
  const int column0 = part / C::kRowParts * 64;
  const int row = part % C::kRowParts * 64 + thread / 32 * 16 + (thread & 31) / 4;
  store_gradient<Element, 64>(gradient, p.rule.scale,
                              row_of<Element>(p.grad_q, first.entry, first.head, first.row) + column0,
                              p.grad_q.row_stride, row, rows, p.rule.head_dim - column0);
}

}  // namespace rootdk::cuda::hopper
