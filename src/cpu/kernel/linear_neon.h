#pragma once

// The dots of linear_integers.h on 64-bit Arm. Products adds the four products of bytes of each lane. Included once per
// target: internal linkage.

#include <arm_neon.h>

#include "cpu/kernel/linear_integers.h"

namespace rootdk::cpu {
namespace {

template <class Products>
struct NeonDots {
  using Int = int32x4_t;
  using Weights = int8x16_t;  // 4 rows, 4 columns each
  using Quad = int8x16_t;
  static constexpr int kByteZero = 0, kHalfZero = 8;
  static constexpr bool kPairs = false;
  static constexpr int kTileRows = Products::kTileRows;

  static Weights bytes(const char* p) { return vld1q_s8(reinterpret_cast<const int8_t*>(p)); }
  static void halves(const char* p, Weights& low, Weights& high) {
    const uint8x16_t both = vld1q_u8(reinterpret_cast<const uint8_t*>(p));
    low = vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15)));
    high = vreinterpretq_s8_u8(vshrq_n_u8(both, 4));
  }
  static Weights unpacked(const char* p) { return bytes(p); }
  static void unpack(const char* p, char* low, char* high) {
    Weights l, h;
    halves(p, l, h);
    vst1q_s8(reinterpret_cast<int8_t*>(low), l);
    vst1q_s8(reinterpret_cast<int8_t*>(high), h);
  }
  static Quad quad(const IntegerRows& x, int64_t at) {
    int32_t four;
    __builtin_memcpy(&four, x.bytes + at, sizeof four);
    return vreinterpretq_s8_s32(vdupq_n_s32(four));
  }
  static Int dot_bytes(Int sums, Weights w, Quad x) { return Products::add(sums, w, x); }
  static Int dot_halves(Int sums, Weights w, Quad x) { return Products::add(sums, w, x); }
  static Int set1(int32_t x) { return vdupq_n_s32(x); }
  static Int add(Int a, Int b) { return vaddq_s32(a, b); }
  static Vec to_float(Int x) { return vcvtq_f32_s32(x); }
};

}  // namespace
}  // namespace rootdk::cpu
