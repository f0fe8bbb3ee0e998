#pragma once

// Products of bf16 on AVX-512 with vdpbf16ps: a vector holds 32 numbers, and a lane adds the products of two
// neighbours. src/cpu/kernel/README.md lists what every target with such products provides.

#include <immintrin.h>

#include "cpu/simd/block_sums_avx512.h"
#include "cpu/simd/common.h"

namespace rootdk::cpu {
namespace {

struct Pairs {
  using Vector = __m512i;
  static constexpr int kLanes = 32;

  static __mmask32 first(int n) { return n >= kLanes ? 0xffffffffu : (1u << n) - 1u; }
  static Vector load(const uint16_t* p) { return _mm512_loadu_si512(p); }
  static Vector load_first(const uint16_t* p, int n) { return _mm512_maskz_loadu_epi16(first(n), p); }
  static void store(uint16_t* p, Vector x) { _mm512_storeu_si512(p, x); }
  static void store_first(uint16_t* p, Vector x, int n) { _mm512_mask_storeu_epi16(p, first(n), x); }
  static Vec as_floats(Vector x) { return _mm512_castsi512_ps(x); }
  // A pair in every lane. It may have been stored as two numbers: only a copy may read it as something else.
  static Vector spread(const void* p) {
    int32_t pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return _mm512_set1_epi32(pair);
  }
  static Vec dot(Vec sum, Vector a, Vector b) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }

  // Two vectors of floats, and back.
  static Vector round(Vec x, Vec y) { return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(y, x)); }
  static Vec widen_first(Vector x) { return widen(_mm512_castsi512_si256(x)); }
  static Vec widen_second(Vector x) { return widen(_mm512_extracti64x4_epi64(x, 1)); }

  // Pairs of the numbers of two vectors: in each quarter, of its first four and of the others.
  static void interleave(Vector a, Vector b, Vector (&pairs)[2]) {
    pairs[0] = _mm512_unpacklo_epi16(a, b);
    pairs[1] = _mm512_unpackhi_epi16(a, b);
  }
  // out = out * factor + sums of products with what interleave() gave, back in the order of the columns.
  static void join(const Vec (&sums)[2], float factor, float* out) {
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    const Vec ordered[2] = {_mm512_permutex2var_ps(sums[0], first, sums[1]),
                            _mm512_permutex2var_ps(sums[0], second, sums[1])};
    for (int i = 0; i < 2; ++i) {
      const Vec before = _mm512_loadu_ps(out + 16 * i);
      _mm512_storeu_ps(out + 16 * i, _mm512_fmadd_ps(before, _mm512_set1_ps(factor), ordered[i]));
    }
  }

  // Pairs in the order of the numbers.
  class InOrder {
   public:
    Vector first(Vector a, Vector b) const { return _mm512_permutex2var_epi16(a, first_, b); }
    Vector second(Vector a, Vector b) const { return _mm512_permutex2var_epi16(a, second_, b); }

   private:
    static Vector from(int number) {
      const __m512i counted = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
      const __m512i both = _mm512_mullo_epi32(counted, _mm512_set1_epi32(0x00010001));
      // The second vector counts from 32.
      return _mm512_add_epi32(both, _mm512_set1_epi32(0x00200000 + number * 0x00010001));
    }
    Vector first_ = from(0), second_ = from(16);
  };

  // Two rows of floats as a row of pairs.
  static void store_row_pair(uint32_t* to, Vec first, Vec second) {
    alignas(64) static constexpr uint16_t kInterleave[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                             21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                             11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    _mm512_storeu_si512(to, _mm512_permutexvar_epi16(_mm512_load_si512(kInterleave), round(first, second)));
  }

  // The sums over the lanes of a 4 x 4 block, and the distances of the lanes that it adds, one after another.
  static constexpr const int (&kSumDistances)[4] = kBlockSumDistances;
  static void store_sums(const Vec (&sums)[4][4], float* to, int stride) { store_block_sums(sums, to, stride); }

  // Whether a vector among many holds an infinity or a NaN: magnitudes have the order of integers.
  class NotFinite {
   public:
    void add(Vector x) { largest_ = _mm512_max_epu16(largest_, _mm512_and_si512(x, _mm512_set1_epi16(0x7fff))); }
    bool any() const { return _mm512_cmpge_epu16_mask(largest_, _mm512_set1_epi16(0x7f80)) != 0; }

   private:
    Vector largest_ = _mm512_setzero_si512();
  };

  // What the compiler knows nothing about.
  static void hide(Vector& x) { __asm__("" : "+v"(x)); }

 private:
  static Vec widen(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }
};

}  // namespace
}  // namespace rootdk::cpu
