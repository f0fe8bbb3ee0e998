#pragma once

// Vector mathematics of the kernels, written once over Simd. Included once per target: internal linkage.

#include "cpu/simd/common.h"

namespace rootdk::cpu {
namespace {

// 2^x for x <= 127, relative error below 5e-7. Below -127, and for -inf, exactly 0; NaN stays NaN.
// The magic number rounds x to the integer n in its low bits, which then move into the exponent; 2^(x - n) is a
// degree-5 minimax polynomial with 2^0 = 1.
inline Vec exp2_of_clamped(Vec x) {
  const Vec magic = Simd::set1(0x1.8p23f);
  const Vec shifted = Simd::add(x, magic);
  const Vec r = Simd::sub(x, Simd::sub(shifted, magic));  // in [-0.5, 0.5]
  Vec p = Simd::set1(0x1.23a608p-10f);
  p = Simd::fma(p, r, Simd::set1(0x1.3cbea8p-7f));
  p = Simd::fma(p, r, Simd::set1(0x1.c74322p-5f));
  p = Simd::fma(p, r, Simd::set1(0x1.ebfa4ep-3f));
  p = Simd::fma(p, r, Simd::set1(0x1.62e39ep-1f));
  p = Simd::fma(p, r, Simd::set1(1.0f));
  return Simd::add_exponent(p, shifted);
}

// 2^r for r in [0, 1], relative error below 2e-7: a degree-5 minimax polynomial with 2^0 = 1 and 2^1 = 2. With both, a
// row's largest score has the weight 1 whichever side of 0 the rounding of its exponent falls on.
inline Vec exp2_of_fraction(Vec r) {
  Vec p = Simd::set1(0x1.eca6fp-10f);
  p = Simd::fma(p, r, Simd::set1(0x1.269deep-7f));
  p = Simd::fma(p, r, Simd::set1(0x1.c9444p-5f));
  p = Simd::fma(p, r, Simd::set1(0x1.ebd8a6p-3f));
  p = Simd::fma(p, r, Simd::set1(0x1.62e4c8p-1f));
  return Simd::fma(p, r, Simd::set1(1.0f));
}

// The order of the operands matters: max returns the second when one is NaN.
inline Vec clamp_exponent(Vec x) { return Simd::max(Simd::set1(-127.0f), x); }

inline Vec exp2(Vec x) { return exp2_of_clamped(clamp_exponent(x)); }

// 2^x for x <= 0. Where a vector has instructions for it (Simd::kScales), x - floor(x) and p 2^floor(x) are one each,
// which saves a fifth of the time; below 2^-126 the result is then smaller than any normal number: see TinyToZero.
template <class Vector = Simd>
inline Vec exp2_of_score(Vec x) {
  if constexpr (Vector::kScales) {
    return Vector::scale(exp2_of_fraction(Vector::fraction(x)), x);
  } else {
    return exp2(x);
  }
}

// While one exists, results below 2^-126 are 0 where exp2_of_score() would give others: products with such numbers take
// a hundred times as long as with any other on some processors.
template <class Vector, bool kNeeded = Vector::kScales>
struct TinyToZeroOf {};
template <class Vector>
struct TinyToZeroOf<Vector, true> : Vector::TinyToZero {};
using TinyToZero = TinyToZeroOf<Simd>;

inline float exp2(float x) {
  float lanes[Simd::kWidth];
  Simd::store(lanes, exp2(Simd::set1(x)));
  return lanes[0];
}

// Relative error below 3e-7, small arguments included: a polynomial below 0.625, 1 - 2 / (e^2x + 1) above.
inline Vec tanh(Vec x) {
  const Vec magnitude = Simd::abs(x);
  const Vec square = Simd::mul(x, x);
  Vec p = Simd::set1(-0x1.75e1dp-8f);
  p = Simd::fma(p, square, Simd::set1(0x1.52269cp-6f));
  p = Simd::fma(p, square, Simd::set1(-0x1.b83c5ap-5f));
  p = Simd::fma(p, square, Simd::set1(0x1.110726p-3f));
  p = Simd::fma(p, square, Simd::set1(-0x1.555532p-2f));
  const Vec near_zero = Simd::fma(Simd::mul(p, square), magnitude, magnitude);
  // tanh is 1 in float from 9.01 on; the order keeps NaN.
  const Vec bounded = Simd::select_less(Simd::set1(9.5f), magnitude, Simd::set1(9.5f), magnitude);
  const Vec e = exp2_of_clamped(Simd::mul(bounded, Simd::set1(2.0f * kLog2E)));
  const Vec far = Simd::sub(Simd::set1(1.0f), Simd::div(Simd::set1(2.0f), Simd::add(e, Simd::set1(1.0f))));
  return Simd::copy_sign(Simd::select_less(magnitude, Simd::set1(0.625f), near_zero, far), x);
}

}  // namespace
}  // namespace rootdk::cpu
