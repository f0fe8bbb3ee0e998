#pragma once

#include "cuda/ptx/arithmetic.cuh"

namespace rootdk::cuda::ptx {

inline float bfloat_of(std::uint32_t pair, int which) {
  return __uint_as_float(which ? pair & 0xffff0000u : pair << 16);
}

// d [16 x 8] += a [16 x 16] b [16 x 8] by the fragments of m16n8k16.
template <class Element>
void mma(float (&d)[4], const uint4& a, std::uint32_t b0, std::uint32_t b1) {
  using test::emulation::exchange;
  const auto element_of = [](std::uint32_t pair, int which) {
    return std::is_same_v<Element, __half> ? half_of(pair, which) : bfloat_of(pair, which);
  };
  float left[16][16], right[16][8];
  const std::uint32_t a_words[4] = {a.x, a.y, a.z, a.w}, b_words[2] = {b0, b1};
  for (int word = 0; word < 4; ++word) {
    const auto& all = exchange(a_words[word]);
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 2; ++i) {
        left[lane / 4 + 8 * (word % 2)][2 * (lane % 4) + 8 * (word / 2) + i] = element_of(all[lane], i);
      }
    }
  }
  for (int word = 0; word < 2; ++word) {
    const auto& all = exchange(b_words[word]);
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 2; ++i) right[2 * (lane % 4) + 8 * word + i][lane / 4] = element_of(all[lane], i);
    }
  }
  const int g = static_cast<int>(threadIdx.x % 32 / 4), t = static_cast<int>(threadIdx.x % 4);
  for (int c = 0; c < 4; ++c) {
    for (int k = 0; k < 16; ++k) d[c] += left[g + 8 * (c / 2)][k] * right[k][2 * t + c % 2];
  }
}

inline void mma_f16(float (&d)[4], const uint4& a, std::uint32_t b0, std::uint32_t b1) { mma<__half>(d, a, b0, b1); }

inline std::uint32_t transpose_8x8(std::uint32_t pair) {
  const auto& all = test::emulation::exchange(pair);
  const int g = static_cast<int>(threadIdx.x % 32 / 4), t = static_cast<int>(threadIdx.x % 4);
  const auto element = [&](int row, int column) { return all[4 * row + column / 2] >> 16 * (column % 2) & 0xffffu; };
  return element(2 * t, g) | element(2 * t + 1, g) << 16;
}

}  // namespace rootdk::cuda::ptx
