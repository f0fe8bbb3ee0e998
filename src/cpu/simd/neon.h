#pragma once

// The vector of the neon target (aarch64): 4 floats. src/cpu/README.md lists what every target provides.

#include <arm_neon.h>
#include <stdint.h>

#include "cpu/simd/scalar_partial.h"

namespace rootdk::cpu {
namespace {

struct Neon {
  using Vec = float32x4_t;
  using Int = uint32x4_t;
  static constexpr int kWidth = 4;
  static constexpr int kPanelVectors = 4;  // 6 x 4 accumulators of the 32 registers
  static constexpr int kRows = 6;
  static constexpr bool kFused = true;  // fma rounds once
  static constexpr bool kScales = false;
  static constexpr int kReduceDistances[] = {1, 2};  // lanes that reduce_add adds, one after another

  static Vec load(const float* p) { return vld1q_f32(p); }
  static void store(float* p, Vec x) { vst1q_f32(p, x); }
  static Vec set1(float x) { return vdupq_n_f32(x); }
  static Vec zero() { return vdupq_n_f32(0); }
  static Vec iota() { return Vec{0, 1, 2, 3}; }

  static Vec add(Vec a, Vec b) { return vaddq_f32(a, b); }
  static Vec sub(Vec a, Vec b) { return vsubq_f32(a, b); }
  static Vec mul(Vec a, Vec b) { return vmulq_f32(a, b); }
  static Vec div(Vec a, Vec b) { return vdivq_f32(a, b); }
  static Vec fma(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
  static Vec max(Vec a, Vec b) { return vmaxq_f32(a, b); }
  static Vec abs(Vec x) { return vabsq_f32(x); }
  static Vec copy_sign(Vec magnitude, Vec sign) { return vbslq_f32(vdupq_n_u32(0x80000000u), sign, magnitude); }
  static Vec select_less(Vec a, Vec b, Vec when_less, Vec otherwise) {
    return vbslq_f32(vcltq_f32(a, b), when_less, otherwise);
  }
  static Vec add_exponent(Vec x, Vec biased) {
    return vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(x), vshlq_n_u32(vreinterpretq_u32_f32(biased), 23)));
  }
  static float reduce_add(Vec x) { return vaddvq_f32(x); }
  static float reduce_max(Vec x) { return vmaxvq_f32(x); }

  static Vec load_bf16(const uint16_t* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
  static Vec load_f16(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
  static void store_bf16(uint16_t* p, Vec x) {
    const uint32x4_t word = vreinterpretq_u32_f32(x);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(word, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(word, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    const uint32x4_t quiet = vorrq_u32(word, vdupq_n_u32(0x400000));
    vst1_u16(p, vshrn_n_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet), 16));
  }
  static void store_f16(uint16_t* p, Vec x) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x))); }

  // Lanes of p where the 16-bit number is at least `threshold`; 0 elsewhere.
  static Vec keep_at_least(Vec p, const uint16_t* lanes, uint32_t threshold) {
    const uint32x4_t keep = vcgeq_u32(vmovl_u16(vld1_u16(lanes)), vdupq_n_u32(threshold));
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(p), keep));
  }

  static Int set1_int(uint32_t x) { return vdupq_n_u32(x); }
  static Int iota_int() { return Int{0, 1, 2, 3}; }
  static Int add_int(Int a, Int b) { return vaddq_u32(a, b); }
  static Int xor_int(Int a, Int b) { return veorq_u32(a, b); }
  static void store_int(uint32_t* p, Int x) { vst1q_u32(p, x); }
  // The 64-bit products of each lane with m, as high and low words.
  static void multiply_wide(Int a, uint32_t m, Int& high, Int& low) {
    const uint32x4_t first = vreinterpretq_u32_u64(vmull_n_u32(vget_low_u32(a), m));
    const uint32x4_t second = vreinterpretq_u32_u64(vmull_n_u32(vget_high_u32(a), m));
    low = vuzp1q_u32(first, second);
    high = vuzp2q_u32(first, second);
  }

  // rows[i][j] <-> rows[j][i], any 32-bit lanes.
  static void transpose(Vec (&rows)[kWidth]) {
    const float32x4x2_t low = vzipq_f32(rows[0], rows[2]);
    const float32x4x2_t high = vzipq_f32(rows[1], rows[3]);
    const float32x4x2_t first = vzipq_f32(low.val[0], high.val[0]);
    const float32x4x2_t second = vzipq_f32(low.val[1], high.val[1]);
    rows[0] = first.val[0];
    rows[1] = first.val[1];
    rows[2] = second.val[0];
    rows[3] = second.val[1];
  }
};

using Simd = WithPartialAccess<Neon>;

}  // namespace
}  // namespace rootdk::cpu
