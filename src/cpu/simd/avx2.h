#pragma once

// The vector of the avx2 target (avx2, fma, f16c): 8 floats. src/cpu/README.md lists what every target provides.

#include <immintrin.h>
#include <stdint.h>

#include "cpu/simd/scalar_partial.h"

namespace rootdk::cpu {
namespace {

struct Avx2 {
  using Vec = __m256;
  using Int = __m256i;
  static constexpr int kWidth = 8;
  static constexpr int kPanelVectors = 2;  // 6 x 2 accumulators of the 16 registers
  static constexpr int kRows = 6;
  static constexpr bool kFused = true;  // fma rounds once
  static constexpr bool kScales = false;
  static constexpr int kReduceDistances[] = {4, 2, 1};  // lanes that reduce_add adds, one after another

  static Vec load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Vec x) { _mm256_storeu_ps(p, x); }
  static Vec set1(float x) { return _mm256_set1_ps(x); }
  static Vec zero() { return _mm256_setzero_ps(); }
  static Vec iota() { return _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7); }

  static Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
  static Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
  static Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
  static Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
  static Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
  static Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
  static Vec abs(Vec x) { return _mm256_andnot_ps(set1(-0.0f), x); }
  static Vec copy_sign(Vec magnitude, Vec sign) {
    return _mm256_or_ps(abs(magnitude), _mm256_and_ps(set1(-0.0f), sign));
  }
  static Vec select_less(Vec a, Vec b, Vec when_less, Vec otherwise) {
    return _mm256_blendv_ps(otherwise, when_less, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
  }
  static Vec add_exponent(Vec x, Vec biased) {
    return _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(x), _mm256_slli_epi32(_mm256_castps_si256(biased), 23)));
  }
  static float reduce_add(Vec x) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
  }
  static float reduce_max(Vec x) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
  }

  static Vec load_bf16(const uint16_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_128(p)), 16));
  }
  static Vec load_f16(const uint16_t* p) { return _mm256_cvtph_ps(load_128(p)); }
  static void store_bf16(uint16_t* p, Vec x) {
    const __m256i word = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(word, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(word, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(word, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
  }
  static void store_f16(uint16_t* p, Vec x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }

  // Lanes of p where the 16-bit number is at least `threshold`; 0 elsewhere.
  static Vec keep_at_least(Vec p, const uint16_t* lanes, uint32_t threshold) {
    const __m256i wide = _mm256_cvtepu16_epi32(load_128(lanes));
    const __m256i dropped = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(threshold)), wide);
    return _mm256_andnot_ps(_mm256_castsi256_ps(dropped), p);
  }

  static Int set1_int(uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
  static Int iota_int() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
  static Int add_int(Int a, Int b) { return _mm256_add_epi32(a, b); }
  static Int xor_int(Int a, Int b) { return _mm256_xor_si256(a, b); }
  static void store_int(uint32_t* p, Int x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x); }
  // The 64-bit products of each lane with m, as high and low words.
  static void multiply_wide(Int a, uint32_t m, Int& high, Int& low) {
    const __m256i factor = set1_int(m);
    const __m256i even = _mm256_mul_epu32(a, factor);
    const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), factor);
    low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
    high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
  }

  // rows[i][j] <-> rows[j][i], any 32-bit lanes.
  static void transpose(Vec (&rows)[kWidth]) {
    Vec pairs[kWidth], quads[kWidth];
    for (int i = 0; i < kWidth; i += 2) {
      pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
      pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < kWidth; i += 4) {
      quads[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
      quads[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
      quads[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
      quads[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
    }
    for (int c = 0; c < 4; ++c) {
      rows[c] = _mm256_permute2f128_ps(quads[c], quads[4 + c], 0x20);
      rows[4 + c] = _mm256_permute2f128_ps(quads[c], quads[4 + c], 0x31);
    }
  }

 private:
  static __m128i load_128(const uint16_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
};

using Simd = WithPartialAccess<Avx2>;

}  // namespace
}  // namespace rootdk::cpu
