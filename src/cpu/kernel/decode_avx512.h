#pragma once

// Products of the decode kernel in f32 on AVX-512: the sums of a block of scores go through one tree. Included once per
// target: internal linkage.

#include "cpu/kernel/decode_widened.h"
#include "cpu/simd/block_sums_avx512.h"

namespace rootdk::cpu {
namespace {

constexpr int kByteLanes = 64;  // of a vector

inline __mmask64 first_bytes(int n) { return n >= kByteLanes ? ~__mmask64{0} : (__mmask64{1} << n) - 1; }

// Four lanes of one 128-bit quarter at a time, from four vectors: vector i gets lane i of all of them, side by
// side.
inline void transpose_quarters(__m512i (&x)[4]) {
  const __m512i a = _mm512_unpacklo_epi32(x[0], x[1]), b = _mm512_unpackhi_epi32(x[0], x[1]);
  const __m512i c = _mm512_unpacklo_epi32(x[2], x[3]), d = _mm512_unpackhi_epi32(x[2], x[3]);
  x[0] = _mm512_unpacklo_epi64(a, c);
  x[1] = _mm512_unpackhi_epi64(a, c);
  x[2] = _mm512_unpacklo_epi64(b, d);
  x[3] = _mm512_unpackhi_epi64(b, d);
}

template <class Stored, class Values = WidenOnce>
struct WidenedLanesAvx512 : WidenedLanes<Stored, Values> {
  using Order = Chains<1, kBlockSumDistances>;
  static Vec held(Vec x) {
    asm("" : "+v"(x));
    return x;
  }
  static void store_sums(const Vec (&sums)[4][4], float* to, int stride) { store_block_sums(sums, to, stride); }
};

struct StoredInt8Avx512 {
  using Type = int8_t;
  static Vec load(const int8_t* p) { return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  static Vec load_first(const int8_t* p, int n) {
    return widen(_mm_maskz_loadu_epi8(static_cast<__mmask16>(n >= 16 ? 0xffff : (1 << n) - 1), p));
  }

 private:
  static Vec widen(__m128i bytes) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)); }
};

// e4m3 by way of f16, whose exponents are 8 larger. A byte that is extended by its sign and moved up by 7 has every bit
// in its place, but for a copy of the sign where the exponent's first bit is.
struct StoredE4m3Avx512 {
  using Type = uint8_t;
  static Vec load(const uint8_t* p) { return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  static Vec load_first(const uint8_t* p, int n) {
    return widen(_mm_maskz_loadu_epi8(static_cast<__mmask16>(n >= 16 ? 0xffff : (1 << n) - 1), p));
  }

 private:
  static Vec widen(__m128i bytes) {
    const __m256i moved = _mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7);
    const __m256i halves = _mm256_and_si256(moved, _mm256_set1_epi16(static_cast<short>(0xbf80)));
    const __mmask16 nan = _mm_cmpeq_epi8_mask(_mm_or_si128(bytes, _mm_set1_epi8(-128)), _mm_set1_epi8(-1));
    const __m256i marked = _mm256_mask_mov_epi16(halves, nan, _mm256_set1_epi16(0x7e00));
    return _mm512_mul_ps(_mm512_cvtph_ps(marked), _mm512_set1_ps(256.0f));
  }
};

template <class Stored, class Values = WidenOnce>
using WidenedAvx512 = WidenedProduct<WidenedLanesAvx512<Stored, Values>>;

}  // namespace
}  // namespace rootdk::cpu
