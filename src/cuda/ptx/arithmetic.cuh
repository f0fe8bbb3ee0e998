#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace rootdk::cuda::ptx {

// 2^x; 0 for -inf, relative error 2^-22.
__device__ __forceinline__ float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// log2(x), absolute error 2^-22 near 1; -inf for 0 and below the smallest normal number.
__device__ __forceinline__ float log2_approximate(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x, relative error 2^-23; infinity for 0 and what is below the smallest normal number.
__device__ __forceinline__ float reciprocal_approximate(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The larger, or NaN where either is NaN.
__device__ __forceinline__ float max_or_nan(float x, float y) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(x), "f"(y));
  return larger;
}

// A word whose `width` bits from `first` on are set; bits past 31 are cut off.
__device__ __forceinline__ std::uint32_t bit_mask(int first, int width) {
  std::uint32_t mask;
  asm("bmsk.clamp.b32 %0, %1, %2;" : "=r"(mask) : "r"(first), "r"(width));
  return mask;
}

// x if the word has the bit, else -inf. In this form ptxas turns several bits of a word into predicates with one
// instruction.
__device__ __forceinline__ float unless_masked(float x, std::uint32_t word, std::uint32_t bit) {
  std::uint32_t y;
  asm("{.reg .pred seen; .reg .b32 both; and.b32 both, %2, %3; setp.ne.u32 seen, both, 0;"
      " selp.b32 %0, %1, 0xff800000, seen;}"
      : "=r"(y)
      : "r"(__float_as_uint(x)), "r"(word), "r"(bit));
  return __uint_as_float(y);
}

// Two floats rounded to nearest into one register, `low` in the low half.
template <class Element>
__device__ __forceinline__ std::uint32_t pack(float low, float high);
template <>
__device__ __forceinline__ std::uint32_t pack<__nv_bfloat16>(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
template <>
__device__ __forceinline__ std::uint32_t pack<__half>(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// Four floats rounded to the nearest e4m3 numbers, at most 448; the first in the low byte.
__device__ __forceinline__ std::uint32_t pack_e4m3(float a, float b, float c, float d) {
  std::uint32_t four;
  asm("{.reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, %2, %1; cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;"
      " mov.b32 %0, {low, high};}"
      : "=r"(four)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return four;
}

// a b + c of two 16-bit pairs.
template <class Element>
__device__ __forceinline__ std::uint32_t fma_pair(std::uint32_t a, std::uint32_t b, std::uint32_t c);
template <>
__device__ __forceinline__ std::uint32_t fma_pair<__nv_bfloat16>(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  std::uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
template <>
__device__ __forceinline__ std::uint32_t fma_pair<__half>(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  std::uint32_t d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// Two e4m3 numbers to a pair of f16, exactly.
__device__ __forceinline__ std::uint32_t unpack_e4m3(std::uint16_t bytes) {
  std::uint32_t pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(bytes));
  return pair;
}

// Whether all elements of the pairs are finite: 0 times infinity or NaN is NaN, which a sum keeps.
template <class Element, int N>
__device__ __forceinline__ bool all_finite(const std::uint32_t (&pairs)[N]) {
  std::uint32_t probe[2] = {};
#pragma unroll
  for (int i = 0; i < N; ++i) probe[i % 2] = fma_pair<Element>(pairs[i], 0, probe[i % 2]);
  constexpr std::uint32_t kMagnitudes = 0x7fff7fff;
  return ((probe[0] | probe[1]) & kMagnitudes) == 0;
}

}  // namespace rootdk::cuda::ptx
