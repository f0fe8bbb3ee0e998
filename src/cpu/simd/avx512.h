#pragma once

// The vector of the avx512, avx512bf16 and amx targets: 16 floats. src/cpu/README.md lists what every target provides.

#include <immintrin.h>
#include <stdint.h>

namespace rootdk::cpu {
namespace {

struct Simd {
  using Vec = __m512;
  using Int = __m512i;
  static constexpr int kWidth = 16;
  static constexpr int kPanelVectors = 4;  // 6 x 4 accumulators of the 32 registers
  static constexpr int kRows = 6;
  static constexpr bool kFused = true;                     // fma rounds once
  static constexpr int kReduceDistances[] = {8, 4, 2, 1};  // lanes that reduce_add adds, one after another

  static Vec load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Vec x) { _mm512_storeu_ps(p, x); }
  static Vec load_first(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static void store_first(float* p, Vec x, int n) { _mm512_mask_storeu_ps(p, first(n), x); }
  static Vec set1(float x) { return _mm512_set1_ps(x); }
  static Vec zero() { return _mm512_setzero_ps(); }
  static Vec iota() { return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }

  static Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
  static Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
  static Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
  static Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
  static Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  static Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
  static Vec abs(Vec x) { return _mm512_abs_ps(x); }
  static Vec copy_sign(Vec magnitude, Vec sign) {
    const __m512i bit = _mm512_set1_epi32(static_cast<int>(0x80000000u));
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(bit, _mm512_castps_si512(sign), _mm512_castps_si512(magnitude),
                                                         0xCA));  // bit ? sign : magnitude
  }
  static Vec select_less(Vec a, Vec b, Vec when_less, Vec otherwise) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), otherwise, when_less);
  }
  static Vec add_exponent(Vec x, Vec biased) {
    return _mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_castps_si512(x), _mm512_slli_epi32(_mm512_castps_si512(biased), 23)));
  }
  static constexpr bool kScales = true;
  static Vec fraction(Vec x) {
    constexpr int kFromFloor = 1;
    return _mm512_reduce_ps(x, kFromFloor);
  }
  static Vec scale(Vec x, Vec exponent) { return _mm512_scalef_ps(x, exponent); }
  class TinyToZero {
   public:
    TinyToZero() { _mm_setcsr(before_ | _MM_FLUSH_ZERO_ON); }
    ~TinyToZero() { _mm_setcsr(before_); }
    TinyToZero(const TinyToZero&) = delete;
    TinyToZero& operator=(const TinyToZero&) = delete;

   private:
    const unsigned before_ = _mm_getcsr();
  };
  static float reduce_add(Vec x) { return _mm512_reduce_add_ps(x); }
  static float reduce_max(Vec x) { return _mm512_reduce_max_ps(x); }
  // Lane i is all lanes of rows[i] combined, with the bits of reduce_add; lanes from 8 on hold anything.
  static constexpr bool kReducesEight = true;
  template <class Combine>
  static Vec reduce_eight(const Vec (&rows)[8], Combine combine) {
    auto halves = [&](Vec a, Vec b) {
      return combine(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    };
    auto quarters = [&](Vec a, Vec b) {
      return combine(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    };
    const Vec a = quarters(halves(rows[0], rows[1]), halves(rows[2], rows[3]));
    const Vec b = quarters(halves(rows[4], rows[5]), halves(rows[6], rows[7]));
    const Vec pairs = combine(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
    const Vec sums = combine(_mm512_shuffle_ps(pairs, pairs, 0x88), _mm512_shuffle_ps(pairs, pairs, 0xdd));
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 0, 0, 0, 0, 0, 0, 0, 0), sums);
  }
  static bool any_less(Vec a, Vec b, int n) { return (_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ) & ((1u << n) - 1u)) != 0; }
  // Lane i is all lanes of rows[i] combined, for the first n rows: thirty shuffles for sixteen rows, half for eight.
  template <class Combine>
  static Vec reduce_rows(const float (&rows)[kWidth][kWidth], int n, Combine combine) {
    // Every quarter has a part of what four rows give.
    auto four = [&](int i) {
      auto row = [&](int j) { return i + j < n ? load(rows[i + j]) : zero(); };
      auto pair = [&](Vec a, Vec b) { return combine(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)); };
      const Vec a = pair(row(0), row(1)), b = pair(row(2), row(3));
      return combine(unpack_low_64(a, b), unpack_high_64(a, b));
    };
    auto join = [&](Vec a, Vec b) {
      return combine(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    };
    const Vec eight = join(four(0), four(4));
    return join(eight, n > 8 ? join(four(8), four(12)) : eight);
  }

  static Vec load_bf16(const uint16_t* p) {
    return widen_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static Vec load_bf16_first(const uint16_t* p, int n) { return widen_bf16(_mm256_maskz_loadu_epi16(first(n), p)); }
  static Vec load_f16(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static Vec load_f16_first(const uint16_t* p, int n) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p)); }
  static void store_bf16(uint16_t* p, Vec x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), round_bf16(x)); }
  static void store_bf16_first(uint16_t* p, Vec x, int n) { _mm256_mask_storeu_epi16(p, first(n), round_bf16(x)); }
  static void store_f16(uint16_t* p, Vec x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), round_f16(x)); }
  static void store_f16_first(uint16_t* p, Vec x, int n) { _mm256_mask_storeu_epi16(p, first(n), round_f16(x)); }

  // Lanes of p where the 16-bit number is at least `threshold`; 0 elsewhere.
  static Vec keep_at_least(Vec p, const uint16_t* lanes, uint32_t threshold) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lanes));
    return _mm512_maskz_mov_ps(_mm256_cmpge_epu16_mask(bits, _mm256_set1_epi16(static_cast<short>(threshold))), p);
  }

  static Int set1_int(uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
  static Int iota_int() { return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
  static Int add_int(Int a, Int b) { return _mm512_add_epi32(a, b); }
  static Int xor_int(Int a, Int b) { return _mm512_xor_si512(a, b); }
  static void store_int(uint32_t* p, Int x) { _mm512_storeu_si512(p, x); }
  // The 64-bit products of each lane with m, as high and low words.
  static void multiply_wide(Int a, uint32_t m, Int& high, Int& low) {
    const __m512i factor = set1_int(m);
    const __m512i even = _mm512_mul_epu32(a, factor);
    const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), factor);
    low = _mm512_mask_shuffle_epi32(even, 0xAAAA, odd, _MM_PERM_CCAA);
    high = _mm512_mask_mov_epi32(_mm512_srli_epi64(even, 32), 0xAAAA, odd);
  }

  // rows[i][j] <-> rows[j][i], any 32-bit lanes.
  static void transpose(Vec (&rows)[kWidth]) {
    Vec pairs[kWidth], quads[kWidth];
    for (int i = 0; i < kWidth; i += 2) {
      pairs[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
      pairs[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < kWidth; i += 4) {
      quads[i] = unpack_low_64(pairs[i], pairs[i + 2]);
      quads[i + 1] = unpack_high_64(pairs[i], pairs[i + 2]);
      quads[i + 2] = unpack_low_64(pairs[i + 1], pairs[i + 3]);
      quads[i + 3] = unpack_high_64(pairs[i + 1], pairs[i + 3]);
    }
    // quads[4 g + c] holds, in 128-bit lane l, column 4 l + c of rows 4 g to 4 g + 3.
    for (int c = 0; c < 4; ++c) {
      const Vec low_01 = _mm512_shuffle_f32x4(quads[c], quads[4 + c], 0x88);
      const Vec high_01 = _mm512_shuffle_f32x4(quads[c], quads[4 + c], 0xdd);
      const Vec low_23 = _mm512_shuffle_f32x4(quads[8 + c], quads[12 + c], 0x88);
      const Vec high_23 = _mm512_shuffle_f32x4(quads[8 + c], quads[12 + c], 0xdd);
      rows[c] = _mm512_shuffle_f32x4(low_01, low_23, 0x88);
      rows[8 + c] = _mm512_shuffle_f32x4(low_01, low_23, 0xdd);
      rows[4 + c] = _mm512_shuffle_f32x4(high_01, high_23, 0x88);
      rows[12 + c] = _mm512_shuffle_f32x4(high_01, high_23, 0xdd);
    }
  }

 private:
  static __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
  static Vec widen_bf16(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }
#ifdef __AVX512BF16__
  static __m256i round_bf16(Vec x) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)); }
#else
  static __m256i round_bf16(Vec x) {
    const __m512i word = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(word, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(word, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(word, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16));
  }
#endif
  static __m256i round_f16(Vec x) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static Vec unpack_low_64(Vec a, Vec b) {
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  }
  static Vec unpack_high_64(Vec a, Vec b) {
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  }
};

}  // namespace
}  // namespace rootdk::cpu
