#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace rootdk::cuda::ptx {

// d [16 x 8] += a [16 x 16] b [16 x 8] in f16 with f32 sums, over a warp. Thread t of quad g = lane / 4 has of d the
// columns 2 t and 2 t + 1 of the rows g (d[0], d[1]) and g + 8 (d[2], d[3]).
__device__ __forceinline__ void mma_f16(float (&d)[4], const uint4& a, std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_bf16(float (&d)[4], const uint4& a, std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// The same in either type.
template <class Element>
__device__ __forceinline__ void mma(float (&d)[4], const uint4& a, std::uint32_t b0, std::uint32_t b1) {
  if constexpr (std::is_same_v<Element, __half>) {
    mma_f16(d, a, b0, b1);
  } else {
    mma_bf16(d, a, b0, b1);
  }
}

// An 8 x 8 matrix of 16-bit elements, spread over a warp, transposed: thread t of quad g has the elements (g, 2 t) and
// (g, 2 t + 1) before and after.
__device__ __forceinline__ std::uint32_t transpose_8x8(std::uint32_t pair) {
  std::uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
  return transposed;
}

}  // namespace rootdk::cuda::ptx
