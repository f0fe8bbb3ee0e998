#pragma once

// e4m3 numbers as bf16 numbers on 64-bit Arm. A normal number is moved to its place, and a table of 16 bytes has what
// does not go that way: the magnitudes below 16, of which half are subnormal. Tables of all 128 magnitudes would take
// 16 of the 32 registers.

#include <arm_neon.h>

#include "cpu/kernel/e4m3_bytes.h"
#include "cpu/simd/pairs_neon.h"

namespace rootdk::cpu {
namespace {

struct E4m3Vectors {
  using Vector = uint8x16_t;
  static constexpr int kLanes = 16;

  static Vector load(const uint8_t* p) { return vld1q_u8(p); }
  static Vector load_first(const uint8_t* p, int n) {
    if (n >= kLanes) return load(p);
    uint8_t buffer[kLanes] = {};
    for (int i = 0; i < n; ++i) buffer[i] = p[i];
    return load(buffer);
  }
  // Bytes of two vectors side by side.
  static Vector interleave_first(Vector a, Vector b) { return vzip1q_u8(a, b); }
  static Vector interleave_second(Vector a, Vector b) { return vzip2q_u8(a, b); }

  // 16 numbers as two vectors of bf16, in order.
  static void widen(Vector x, Pairs::Vector& first, Pairs::Vector& second) {
    constexpr unsigned char kExponents = (127 - 7) >> 1, kNan = 0x7f, kSign = 0x80;
    const Vector magnitude = vandq_u8(x, vdupq_n_u8(kNan));
    const Vector low = vqtbx1q_u8(vshlq_n_u8(x, 4), vld1q_u8(kE4m3Bytes.low), magnitude);
    const Vector normal = vaddq_u8(vshrq_n_u8(magnitude, 4), vdupq_n_u8(kExponents));
    const Vector high = vqtbx1q_u8(normal, vld1q_u8(kE4m3Bytes.high), magnitude);
    const Vector marked = vorrq_u8(high, vceqq_u8(magnitude, vdupq_n_u8(kNan)));
    const Vector with_sign = vbslq_u8(vdupq_n_u8(kSign), x, marked);
    first = vreinterpretq_u16_u8(vzip1q_u8(low, with_sign));
    second = vreinterpretq_u16_u8(vzip2q_u8(low, with_sign));
  }
};

}  // namespace
}  // namespace rootdk::cpu
