#pragma once

// The vector of the baseline target, x86-64 as it first was (SSE2, no fused multiply-add): 4 floats.
// src/cpu/README.md lists what every target provides.

#include <emmintrin.h>
#include <stdint.h>

#include "cpu/simd/scalar_partial.h"

namespace rootdk::cpu {
namespace {

struct Sse2 {
  using Vec = __m128;
  using Int = __m128i;
  static constexpr int kWidth = 4;
  static constexpr int kPanelVectors = 2;  // 6 x 2 accumulators of the 16 registers
  static constexpr int kRows = 6;
  static constexpr bool kFused = false;  // fma rounds once
  static constexpr bool kScales = false;
  static constexpr int kReduceDistances[] = {2, 1};  // lanes that reduce_add adds, one after another

  static Vec load(const float* p) { return _mm_loadu_ps(p); }
  static void store(float* p, Vec x) { _mm_storeu_ps(p, x); }
  static Vec set1(float x) { return _mm_set1_ps(x); }
  static Vec zero() { return _mm_setzero_ps(); }
  static Vec iota() { return _mm_setr_ps(0, 1, 2, 3); }

  static Vec add(Vec a, Vec b) { return _mm_add_ps(a, b); }
  static Vec sub(Vec a, Vec b) { return _mm_sub_ps(a, b); }
  static Vec mul(Vec a, Vec b) { return _mm_mul_ps(a, b); }
  static Vec div(Vec a, Vec b) { return _mm_div_ps(a, b); }
  static Vec fma(Vec a, Vec b, Vec c) { return _mm_add_ps(_mm_mul_ps(a, b), c); }
  static Vec max(Vec a, Vec b) { return _mm_max_ps(a, b); }
  static Vec abs(Vec x) { return _mm_andnot_ps(set1(-0.0f), x); }
  static Vec copy_sign(Vec magnitude, Vec sign) { return _mm_or_ps(abs(magnitude), _mm_and_ps(set1(-0.0f), sign)); }
  static Vec select_less(Vec a, Vec b, Vec when_less, Vec otherwise) {
    return blend(_mm_cmplt_ps(a, b), when_less, otherwise);
  }
  static Vec add_exponent(Vec x, Vec biased) {
    return _mm_castsi128_ps(_mm_add_epi32(_mm_castps_si128(x), _mm_slli_epi32(_mm_castps_si128(biased), 23)));
  }
  static float reduce_add(Vec x) {
    const Vec half = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_shuffle_ps(half, half, 1)));
  }
  static float reduce_max(Vec x) {
    const Vec half = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_shuffle_ps(half, half, 1)));
  }

  static Vec load_bf16(const uint16_t* p) {
    return _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), load_64(p)));
  }
  static Vec load_f16(const uint16_t* p) {
    const __m128i half = _mm_unpacklo_epi16(load_64(p), _mm_setzero_si128());
    const __m128i sign = _mm_slli_epi32(_mm_and_si128(half, _mm_set1_epi32(0x8000)), 16);
    const __m128i magnitude = _mm_slli_epi32(_mm_and_si128(half, _mm_set1_epi32(0x7fff)), 13);
    // The multiplication moves the exponent and normalises subnormals; infinity and NaN keep the largest exponent.
    const Vec scaled = _mm_mul_ps(_mm_castsi128_ps(magnitude), set1(0x1p112f));
    const __m128i special = _mm_cmpgt_epi32(magnitude, _mm_set1_epi32((0x7c00 << 13) - 1));
    const __m128i exponent = _mm_and_si128(special, _mm_set1_epi32(0x7f800000));
    return _mm_castsi128_ps(_mm_or_si128(_mm_or_si128(_mm_castps_si128(scaled), exponent), sign));
  }
  static void store_bf16(uint16_t* p, Vec x) {
    const __m128i word = _mm_castps_si128(x);
    const __m128i odd = _mm_and_si128(_mm_srli_epi32(word, 16), _mm_set1_epi32(1));
    const __m128i rounded = _mm_add_epi32(word, _mm_add_epi32(odd, _mm_set1_epi32(0x7fff)));
    const __m128i quiet = _mm_or_si128(word, _mm_set1_epi32(0x400000));
    const Vec chosen = blend(_mm_cmpunord_ps(x, x), _mm_castsi128_ps(quiet), _mm_castsi128_ps(rounded));
    store_high_halves(p, _mm_castps_si128(chosen));
  }
  static void store_f16(uint16_t* p, Vec x) {
    const __m128i word = _mm_castps_si128(x);
    const __m128i sign = _mm_and_si128(word, _mm_set1_epi32(static_cast<int>(0x80000000u)));
    const __m128i magnitude = _mm_xor_si128(word, sign);
    const __m128i odd = _mm_and_si128(_mm_srli_epi32(magnitude, 13), _mm_set1_epi32(1));
    const __m128i normal = _mm_srli_epi32(
        _mm_add_epi32(_mm_sub_epi32(magnitude, _mm_set1_epi32(0x38000000)), _mm_add_epi32(odd, _mm_set1_epi32(0xfff))),
        13);
    // Adding 0.5 aligns the mantissa of a subnormal result, so that the float addition does the rounding.
    const Vec shifted = _mm_add_ps(_mm_castsi128_ps(magnitude), set1(0.5f));
    const __m128i subnormal = _mm_sub_epi32(_mm_castps_si128(shifted), _mm_set1_epi32(0x3f000000));
    Vec half = blend_int(_mm_cmplt_epi32(magnitude, _mm_set1_epi32(0x38800000)), subnormal, normal);
    half = blend_int(_mm_cmpgt_epi32(magnitude, _mm_set1_epi32(0x477fefff)), _mm_set1_epi32(0x7c00),
                     _mm_castps_si128(half));
    half = blend_int(_mm_cmpgt_epi32(magnitude, _mm_set1_epi32(0x7f800000)), _mm_set1_epi32(0x7e00),
                     _mm_castps_si128(half));
    store_high_halves(p, _mm_or_si128(_mm_slli_epi32(_mm_castps_si128(half), 16), sign));
  }

  // Lanes of p where the 16-bit number is at least `threshold`; 0 elsewhere.
  static Vec keep_at_least(Vec p, const uint16_t* lanes, uint32_t threshold) {
    const __m128i wide = _mm_unpacklo_epi16(load_64(lanes), _mm_setzero_si128());
    const __m128i dropped = _mm_cmpgt_epi32(_mm_set1_epi32(static_cast<int>(threshold)), wide);
    return _mm_andnot_ps(_mm_castsi128_ps(dropped), p);
  }

  static Int set1_int(uint32_t x) { return _mm_set1_epi32(static_cast<int>(x)); }
  static Int iota_int() { return _mm_setr_epi32(0, 1, 2, 3); }
  static Int add_int(Int a, Int b) { return _mm_add_epi32(a, b); }
  static Int xor_int(Int a, Int b) { return _mm_xor_si128(a, b); }
  static void store_int(uint32_t* p, Int x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), x); }
  // The 64-bit products of each lane with m, as high and low words.
  static void multiply_wide(Int a, uint32_t m, Int& high, Int& low) {
    const __m128i factor = set1_int(m);
    const __m128i even = _mm_mul_epu32(a, factor);
    const __m128i odd = _mm_mul_epu32(_mm_srli_epi64(a, 32), factor);
    const __m128i low_words = _mm_set1_epi64x(0xffffffff);
    low = _mm_or_si128(_mm_and_si128(even, low_words), _mm_slli_epi64(odd, 32));
    high = _mm_or_si128(_mm_srli_epi64(even, 32), _mm_andnot_si128(low_words, odd));
  }

  // rows[i][j] <-> rows[j][i], any 32-bit lanes.
  static void transpose(Vec (&rows)[kWidth]) { _MM_TRANSPOSE4_PS(rows[0], rows[1], rows[2], rows[3]); }

 private:
  static __m128i load_64(const uint16_t* p) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)); }
  static Vec blend(Vec mask, Vec when_set, Vec otherwise) {
    return _mm_or_ps(_mm_and_ps(mask, when_set), _mm_andnot_ps(mask, otherwise));
  }
  static Vec blend_int(__m128i mask, __m128i when_set, __m128i otherwise) {
    return blend(_mm_castsi128_ps(mask), _mm_castsi128_ps(when_set), _mm_castsi128_ps(otherwise));
  }
  static void store_high_halves(uint16_t* p, __m128i words) {
    const __m128i high = _mm_srai_epi32(words, 16);  // signed, because SSE2 packs with signed saturation
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi32(high, high));
  }
};

using Simd = WithPartialAccess<Sse2>;

}  // namespace
}  // namespace rootdk::cpu
