#pragma once

// Elementary functions in f32 that vectorise: no branches, no calls. Relative error of exp about 2e-7, absolute error
// of erf and tanh about 2e-7.

#include <bit>
#include <cstdint>

#define ROOTDK_INLINE inline __attribute__((always_inline))

namespace rootdk::vector_math {

ROOTDK_INLINE float clamp(float x, float low, float high) {
  x = x < low ? low : x;
  return x > high ? high : x;
}

ROOTDK_INLINE float exp(float x) {
  constexpr float kLog2e = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
  x = clamp(x, -87.0f, 88.0f);
  const float whole = (x * kLog2e + kRound) - kRound;
  const float r = (x - whole * kLn2High) - whole * kLn2Low;  // |r| <= ln 2 / 2
  // Taylor to r^7 / 5040: the remainder is below 1e-8 of the result.
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const auto exponent = static_cast<std::uint32_t>(static_cast<std::int32_t>(whole) + 127) << 23;
  return p * std::bit_cast<float>(exponent);
}

ROOTDK_INLINE float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }

ROOTDK_INLINE float tanh(float x) { return 1.0f - 2.0f / (exp(2.0f * clamp(x, -20.0f, 20.0f)) + 1.0f); }

// Abramowitz and Stegun 7.1.26.
ROOTDK_INLINE float erf(float x) {
  const float magnitude = x < 0 ? -x : x;
  const float t = 1.0f / (1.0f + 0.3275911f * magnitude);
  const float series =
      t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
  const float positive = 1.0f - series * exp(-magnitude * magnitude);
  return x < 0 ? -positive : positive;
}

}  // namespace rootdk::vector_math
