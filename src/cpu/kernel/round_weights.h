#pragma once

// The weights of attention in e4m3 (rootdk/fp8.h). Included once per target: internal linkage.

#include "cpu/simd/common.h"

namespace rootdk::cpu {
namespace {

// e4m3(256 p) / 256 of weights in 0 to 1, to nearest, ties to even; NaN stays. A plain loop, which compilers turn into
// vectors.
inline void round_to_e4m3(float* weights, int count) {
  constexpr uint32_t kDropped = 20;            // bits of the mantissa
  constexpr float kSmallestNormal = 0x1p-14f;  // 2^-6 / 256; below it steps are 2^-17
  constexpr float kAligned = 0x1.8p6f;         // its last bit is 2^-17: adding it rounds
  for (int t = 0; t < count; ++t) {
    const float p = weights[t];
    const auto bits = __builtin_bit_cast(uint32_t, p);
    const uint32_t half = (1u << (kDropped - 1)) - 1 + (bits >> kDropped & 1u);
    const auto normal = __builtin_bit_cast(float, (bits + half) & ~((1u << kDropped) - 1));
    const float small = (p + kAligned) - kAligned;
    weights[t] = p < kSmallestNormal ? small : normal;
  }
}

}  // namespace
}  // namespace rootdk::cpu
