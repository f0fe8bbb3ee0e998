#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace rootdk::cuda::ptx {

// The larger and the smaller of each element of two 16-bit pairs; NaN where either is NaN.
template <class Element>
__device__ __forceinline__ std::uint32_t max_pair(std::uint32_t a, std::uint32_t b);
template <class Element>
__device__ __forceinline__ std::uint32_t min_pair(std::uint32_t a, std::uint32_t b);
template <>
__device__ __forceinline__ std::uint32_t max_pair<__nv_bfloat16>(std::uint32_t a, std::uint32_t b) {
  std::uint32_t d;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
template <>
__device__ __forceinline__ std::uint32_t min_pair<__nv_bfloat16>(std::uint32_t a, std::uint32_t b) {
  std::uint32_t d;
  asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
template <>
__device__ __forceinline__ std::uint32_t max_pair<__half>(std::uint32_t a, std::uint32_t b) {
  std::uint32_t d;
  asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
template <>
__device__ __forceinline__ std::uint32_t min_pair<__half>(std::uint32_t a, std::uint32_t b) {
  std::uint32_t d;
  asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

}  // namespace rootdk::cuda::ptx
