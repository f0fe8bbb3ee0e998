#pragma once

// Products of bytes on AVX-512 with vpdpbusd, which adds four products in each lane, one factor without a sign and one
// with: keys lose their sign by an offset of 128, whose share of a sum depends on the query alone.

#include <immintrin.h>

#include "cpu/simd/common.h"

namespace rootdk::cpu {
namespace {

struct Bytes {
  using Vector = __m512i;  // of bytes
  using Words = __m512i;   // kWidth integers of 32 bits
  static constexpr int kLanes = 64;
  static constexpr bool kOffsetsKeys = true;
  static constexpr bool kOffsetsValues = false;

  static Vector load(const void* p) { return _mm512_loadu_si512(p); }
  static Vector load_first(const int8_t* p, int n) { return _mm512_maskz_loadu_epi8(first(n), p); }
  static void store(void* p, Vector x) { _mm512_storeu_si512(p, x); }
  static Vector zero() { return _mm512_setzero_si512(); }
  static Vec as_floats(Vector x) { return _mm512_castsi512_ps(x); }
  // Four bytes in every lane.
  static Vector spread(const void* p) {
    int32_t four;
    __builtin_memcpy(&four, p, sizeof four);
    return _mm512_set1_epi32(four);
  }

  // Keys and values as the products take them.
  static Vector keys(Vector stored) { return _mm512_xor_si512(stored, _mm512_set1_epi8(-128)); }
  static Vector values(Vector stored) { return stored; }
  static Words add_scores(Words sum, Vector keys, Vector query) { return add_products(sum, keys, query); }
  static Words add_values(Words sum, Vector weights, Vector values) { return add_products(sum, weights, values); }

  // Bytes of four vectors side by side: vector i has, in each quarter, bytes 4 i to 4 i + 3 of the quarter.
  static void interleave(Vector (&x)[4]) {
    const __m512i a = _mm512_unpacklo_epi8(x[0], x[1]), b = _mm512_unpackhi_epi8(x[0], x[1]);
    const __m512i c = _mm512_unpacklo_epi8(x[2], x[3]), d = _mm512_unpackhi_epi8(x[2], x[3]);
    x[0] = _mm512_unpacklo_epi16(a, c);
    x[1] = _mm512_unpackhi_epi16(a, c);
    x[2] = _mm512_unpacklo_epi16(b, d);
    x[3] = _mm512_unpackhi_epi16(b, d);
  }
  // Puts what interleave() has made into the order of the columns: quarter j of vector i goes to quarter i of vector j.
  static void order_columns(Vector (&x)[4]) {
    const __m512i a = _mm512_shuffle_i32x4(x[0], x[1], 0x44), b = _mm512_shuffle_i32x4(x[0], x[1], 0xee);
    const __m512i c = _mm512_shuffle_i32x4(x[2], x[3], 0x44), d = _mm512_shuffle_i32x4(x[2], x[3], 0xee);
    x[0] = _mm512_shuffle_i32x4(a, c, 0x88);
    x[1] = _mm512_shuffle_i32x4(a, c, 0xdd);
    x[2] = _mm512_shuffle_i32x4(b, d, 0x88);
    x[3] = _mm512_shuffle_i32x4(b, d, 0xdd);
  }

  static Words set1(int32_t x) { return _mm512_set1_epi32(x); }
  static Words sub(Words a, Words b) { return _mm512_sub_epi32(a, b); }
  static Words larger(Words a, Words b) { return _mm512_max_epu32(a, b); }
  static Words exponent(Words floats) { return _mm512_srli_epi32(floats, 23); }
  static Vec power_of_two(Words exponent) { return _mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23)); }
  static Words bits(Vec x) { return _mm512_castps_si512(x); }
  static Vec to_float(Words x) { return _mm512_cvtepi32_ps(x); }
  static int32_t first_of(Words x) { return _mm_cvtsi128_si32(_mm512_castsi512_si128(x)); }
  static float first_of(Vec x) { return _mm512_cvtss_f32(x); }
  static Words join_planes(Words high, Words low) { return _mm512_add_epi32(_mm512_slli_epi32(high, 8), low); }
  // The largest lane in every lane.
  static Words largest_lane(Words lanes) {
    const __m512i halves = larger(lanes, _mm512_shuffle_i32x4(lanes, lanes, 0x4e));
    const __m512i quarters = larger(halves, _mm512_shuffle_i32x4(halves, halves, 0xb1));
    const __m512i pairs = larger(quarters, _mm512_shuffle_epi32(quarters, _MM_PERM_BADC));
    return larger(pairs, _mm512_shuffle_epi32(pairs, _MM_PERM_CDAB));
  }

  // Four vectors of weights times `inverse` as integers of 16 bits without a sign, in two planes of bytes. Packing
  // works in quarters and leaves four keys in each lane: the lanes are put in order.
  static void store_planes(const Vec* p, Vec inverse, uint8_t* weights, int plane_stride) {
    const auto whole = [&](Vec x) { return _mm512_cvtps_epi32(Simd::mul(x, inverse)); };
    const __m512i in_order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i low_byte = _mm512_set1_epi16(255);
    const __m512i a = _mm512_packus_epi32(whole(p[0]), whole(p[1]));
    const __m512i b = _mm512_packus_epi32(whole(p[2]), whole(p[3]));
    const __m512i high = _mm512_packus_epi16(_mm512_srli_epi16(a, 8), _mm512_srli_epi16(b, 8));
    const __m512i low = _mm512_packus_epi16(_mm512_and_si512(a, low_byte), _mm512_and_si512(b, low_byte));
    _mm512_storeu_si512(weights, _mm512_permutexvar_epi32(in_order, high));
    _mm512_storeu_si512(weights + plane_stride, _mm512_permutexvar_epi32(in_order, low));
  }

  // Whether one of many numbers is NaN.
  class Nans {
   public:
    void add(Vec x) { found_ = static_cast<__mmask16>(found_ | _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q)); }
    bool any() const { return found_ != 0; }

   private:
    __mmask16 found_ = 0;
  };

 private:
  static __mmask64 first(int n) { return n >= kLanes ? ~__mmask64{0} : (__mmask64{1} << n) - 1; }

  // Not the intrinsic: GCC 12 copies its sums from register to register, and loads a factor anew for each product that
  // it goes into, where the processor has one load for each product.
  static __m512i add_products(__m512i sum, __m512i without_sign, __m512i with_sign) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(without_sign), "v"(with_sign));
    return sum;
  }
};

}  // namespace
}  // namespace rootdk::cpu
