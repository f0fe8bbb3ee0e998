#pragma once

// Products of bf16 on 64-bit Arm with bfdot: a vector holds 8 numbers, and a lane adds the products of two neighbours.
// bfdot rounds products and sums to odd and takes numbers below 2^-126 for zero, as vdpbf16ps does.
// src/cpu/kernel/README.md lists what every target with such products provides.

#include <arm_neon.h>

#include "cpu/simd/common.h"

namespace rootdk::cpu {
namespace {

struct Pairs {
  using Vector = uint16x8_t;
  static constexpr int kLanes = 8;

  static Vector load(const uint16_t* p) { return vld1q_u16(p); }
  static Vector load_first(const uint16_t* p, int n) {
    if (n >= kLanes) return load(p);
    uint16_t buffer[kLanes] = {};
    for (int i = 0; i < n; ++i) buffer[i] = p[i];
    return load(buffer);
  }
  static void store(uint16_t* p, Vector x) { vst1q_u16(p, x); }
  static void store_first(uint16_t* p, Vector x, int n) {
    if (n >= kLanes) return store(p, x);
    uint16_t buffer[kLanes];
    store(buffer, x);
    for (int i = 0; i < n; ++i) p[i] = buffer[i];
  }
  static Vec as_floats(Vector x) { return vreinterpretq_f32_u16(x); }
  // A pair in every lane. It may have been stored as two numbers: only a copy may read it as something else.
  static Vector spread(const void* p) {
    uint32_t pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return vreinterpretq_u16_u32(vdupq_n_u32(pair));
  }
  static Vec dot(Vec sum, Vector a, Vector b) {
    return vbfdotq_f32(sum, vreinterpretq_bf16_u16(a), vreinterpretq_bf16_u16(b));
  }

  // Two vectors of floats, and back.
  static Vector round(Vec x, Vec y) { return vreinterpretq_u16_bf16(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(x), y)); }
  static Vec widen_first(Vector x) { return vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(x), 16)); }
  static Vec widen_second(Vector x) { return vreinterpretq_f32_u32(vshll_high_n_u16(x, 16)); }

  // Pairs of the numbers of two vectors, in order.
  static void interleave(Vector a, Vector b, Vector (&pairs)[2]) {
    pairs[0] = vzip1q_u16(a, b);
    pairs[1] = vzip2q_u16(a, b);
  }
  // out = out * factor + sums of products with what interleave() gave.
  template <int kVectors>
  static void join(const Vec (&sums)[kVectors], float factor, float* out) {
    for (int i = 0; i < kVectors; ++i) {
      Simd::store(out + i * kWidth, Simd::fma(Simd::load(out + i * kWidth), Simd::set1(factor), sums[i]));
    }
  }

  // Pairs in the order of the numbers.
  struct InOrder {
    static Vector first(Vector a, Vector b) { return vzip1q_u16(a, b); }
    static Vector second(Vector a, Vector b) { return vzip2q_u16(a, b); }
  };

  // Two rows of floats as a row of pairs.
  static void store_row_pair(uint32_t* to, Vec first, Vec second) {
    const Vector rounded = round(first, second);
    const uint16x4_t a = vget_low_u16(rounded), b = vget_high_u16(rounded);
    vst1q_u32(to, vreinterpretq_u32_u16(vcombine_u16(vzip1_u16(a, b), vzip2_u16(a, b))));
  }

  // The sums over the lanes of a 4 x 4 block, and the distances of the lanes that it adds, one after another.
  static constexpr int kSumDistances[] = {1, 2};
  static void store_sums(const Vec (&sums)[4][4], float* to, int stride) {
    for (int r = 0; r < 4; ++r) {
      Simd::store(to + r * stride, vpaddq_f32(vpaddq_f32(sums[r][0], sums[r][1]), vpaddq_f32(sums[r][2], sums[r][3])));
    }
  }

  // Whether a vector among many holds an infinity or a NaN: magnitudes have the order of integers.
  class NotFinite {
   public:
    void add(Vector x) { largest_ = vmaxq_u16(largest_, vandq_u16(x, vdupq_n_u16(0x7fff))); }
    bool any() const { return vmaxvq_u16(largest_) >= 0x7f80; }

   private:
    Vector largest_ = vdupq_n_u16(0);
  };

  // What the compiler knows nothing about.
  static void hide(Vector& x) { __asm__("" : "+w"(x)); }
};

}  // namespace
}  // namespace rootdk::cpu
