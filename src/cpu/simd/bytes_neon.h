#pragma once

// Products of bytes on 64-bit Arm with the dot-product extension: sdot and udot add four products in each lane, of two
// factors with a sign or of two without. Keys and queries have one; values lose theirs by an offset of 128, whose share
// of a sum depends on the weights alone.

#include <arm_neon.h>

#include "cpu/simd/common.h"

namespace rootdk::cpu {
namespace {

struct Bytes {
  using Vector = int8x16_t;
  using Words = int32x4_t;
  static constexpr int kLanes = 16;
  static constexpr bool kOffsetsKeys = false;
  static constexpr bool kOffsetsValues = true;

  static Vector load(const void* p) { return vld1q_s8(static_cast<const int8_t*>(p)); }
  static Vector load_first(const int8_t* p, int n) {
    if (n >= kLanes) return load(p);
    int8_t buffer[kLanes] = {};
    for (int i = 0; i < n; ++i) buffer[i] = p[i];
    return load(buffer);
  }
  static void store(void* p, Vector x) { vst1q_s8(static_cast<int8_t*>(p), x); }
  static Vector zero() { return vdupq_n_s8(0); }
  static Vec as_floats(Vector x) { return vreinterpretq_f32_s8(x); }
  static Vec as_floats(Words x) { return vreinterpretq_f32_s32(x); }
  // Four bytes in every lane.
  static Vector spread(const void* p) {
    int32_t four;
    __builtin_memcpy(&four, p, sizeof four);
    return vreinterpretq_s8_s32(vdupq_n_s32(four));
  }

  // Keys and values as the products take them.
  static Vector keys(Vector stored) { return stored; }
  static Vector values(Vector stored) { return veorq_s8(stored, vdupq_n_s8(-128)); }
  static Words add_scores(Words sum, Vector keys, Vector query) { return vdotq_s32(sum, keys, query); }
  static Words add_values(Words sum, Vector weights, Vector values) {
    return vreinterpretq_s32_u32(
        vdotq_u32(vreinterpretq_u32_s32(sum), vreinterpretq_u8_s8(weights), vreinterpretq_u8_s8(values)));
  }
  // The sum of n bytes without a sign, n a multiple of kLanes.
  static uint32_t total(const uint8_t* p, int n) {
    uint32x4_t sum = vdupq_n_u32(0);
    for (int i = 0; i < n; i += kLanes) sum = vdotq_u32(sum, vld1q_u8(p + i), vdupq_n_u8(1));
    return vaddvq_u32(sum);
  }

  // Bytes of four vectors side by side: vector i has bytes 4 i to 4 i + 3, which are columns in their order.
  static void interleave(Vector (&x)[4]) {
    const int16x8_t a = pairs(vzip1q_s8(x[0], x[1])), b = pairs(vzip2q_s8(x[0], x[1]));
    const int16x8_t c = pairs(vzip1q_s8(x[2], x[3])), d = pairs(vzip2q_s8(x[2], x[3]));
    x[0] = vreinterpretq_s8_s16(vzip1q_s16(a, c));
    x[1] = vreinterpretq_s8_s16(vzip2q_s16(a, c));
    x[2] = vreinterpretq_s8_s16(vzip1q_s16(b, d));
    x[3] = vreinterpretq_s8_s16(vzip2q_s16(b, d));
  }
  template <class V>
  static void order_columns(V (&)[4]) {}  // they are in order

  static Words set1(int32_t x) { return vdupq_n_s32(x); }
  static Words sub(Words a, Words b) { return vsubq_s32(a, b); }
  static Words larger(Words a, Words b) {
    return vreinterpretq_s32_u32(vmaxq_u32(vreinterpretq_u32_s32(a), vreinterpretq_u32_s32(b)));
  }
  static Words exponent(Words floats) { return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(floats), 23)); }
  static Vec power_of_two(Words exponent) { return vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23)); }
  static Words bits(Vec x) { return vreinterpretq_s32_f32(x); }
  static Vec to_float(Words x) { return vcvtq_f32_s32(x); }
  static int32_t first_of(Words x) { return vgetq_lane_s32(x, 0); }
  static float first_of(Vec x) { return vgetq_lane_f32(x, 0); }
  static Words join_planes(Words high, Words low) { return vaddq_s32(vshlq_n_s32(high, 8), low); }
  // The largest lane in every lane.
  static Words largest_lane(Words x) {
    return vreinterpretq_s32_u32(vdupq_n_u32(vmaxvq_u32(vreinterpretq_u32_s32(x))));
  }
  // Lane i is the sum of all lanes of rows[i].
  static Words add_lanes(const Words (&rows)[4]) {
    return vpaddq_s32(vpaddq_s32(rows[0], rows[1]), vpaddq_s32(rows[2], rows[3]));
  }

  // Four vectors of weights times `inverse` as integers of 16 bits without a sign, in two planes of bytes.
  static void store_planes(const Vec* p, Vec inverse, uint8_t* weights, int plane_stride) {
    const auto whole = [&](Vec x) { return vqmovn_u32(vcvtnq_u32_f32(Simd::mul(x, inverse))); };
    const uint16x8_t a = vcombine_u16(whole(p[0]), whole(p[1])), b = vcombine_u16(whole(p[2]), whole(p[3]));
    vst1q_u8(weights, vuzp2q_u8(vreinterpretq_u8_u16(a), vreinterpretq_u8_u16(b)));
    vst1q_u8(weights + plane_stride, vuzp1q_u8(vreinterpretq_u8_u16(a), vreinterpretq_u8_u16(b)));
  }
  // Two vectors of numbers as integers of 16 bits in two planes of bytes, both with a sign: the high byte is what is
  // nearest.
  static void store_signed_planes(Vec x, Vec y, int8_t* to, int plane_stride) {
    const int32x4_t a = vcvtnq_s32_f32(x), b = vcvtnq_s32_f32(y);
    const int16x8_t high = vcombine_s16(vmovn_s32(vrshrq_n_s32(a, 8)), vmovn_s32(vrshrq_n_s32(b, 8)));
    vst1_s8(to, vmovn_s16(high));
    vst1_s8(to + plane_stride, vmovn_s16(vcombine_s16(vmovn_s32(a), vmovn_s32(b))));
  }

  // Whether one of many numbers is NaN.
  class Nans {
   public:
    void add(Vec x) { ordered_ = vandq_u32(ordered_, vceqq_f32(x, x)); }
    bool any() const { return vminvq_u32(ordered_) == 0; }

   private:
    uint32x4_t ordered_ = vdupq_n_u32(~0u);
  };

 private:
  static int16x8_t pairs(int8x16_t x) { return vreinterpretq_s16_s8(x); }
};

}  // namespace
}  // namespace rootdk::cpu
