#pragma once

#include "cuda/emulation/block.h"
#include "rootdk/dtype.h"

namespace rootdk::cuda::ptx {

inline float exp2_approximate(float x) { return std::exp2(x); }
inline float log2_approximate(float x) { return std::log2(x); }
inline float reciprocal_approximate(float x) { return 1 / x; }
inline float max_or_nan(float x, float y) { return std::isnan(x) || std::isnan(y) ? NAN : std::max(x, y); }
inline std::uint32_t bit_mask(int first, int width) {
  std::uint32_t mask = 0;
  for (std::int64_t bit = first; bit < std::min<std::int64_t>(std::int64_t{first} + width, 32); ++bit)
    mask |= 1u << bit;
  return mask;
}
inline float unless_masked(float x, std::uint32_t word, std::uint32_t bit) { return word & bit ? x : -INFINITY; }

inline float half_of(std::uint32_t pair, int which) {
  Float16 half;
  half.bits = static_cast<std::uint16_t>(pair >> 16 * which);
  return static_cast<float>(half);
}

template <class Element>
std::uint32_t pack(float low, float high) {
  using Rounded = std::conditional_t<std::is_same_v<Element, __half>, Float16, BFloat16>;
  return Rounded(low).bits | static_cast<std::uint32_t>(Rounded(high).bits) << 16;
}
template <class Element>
std::uint32_t fma_pair(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  static_assert(std::is_same_v<Element, __half>);
  const auto one = [&](int i) { return std::fma(half_of(a, i), half_of(b, i), half_of(c, i)); };
  return pack<__half>(one(0), one(1));
}
inline std::uint32_t unpack_e4m3(std::uint16_t bytes) {
  Float8E4M3 low, high;
  low.bits = static_cast<std::uint8_t>(bytes);
  high.bits = static_cast<std::uint8_t>(bytes >> 8);
  return pack<__half>(static_cast<float>(low), static_cast<float>(high));
}
inline std::uint32_t pack_e4m3(float a, float b, float c, float d) {
  std::uint32_t four = 0;
  const float numbers[4] = {a, b, c, d};
  for (int i = 0; i < 4; ++i) four |= static_cast<std::uint32_t>(Float8E4M3(numbers[i]).bits) << (8 * i);
  return four;
}

}  // namespace rootdk::cuda::ptx
