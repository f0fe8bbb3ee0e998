#pragma once

// The sums over the lanes of a 4 x 4 block of vectors: a tree of 15 additions for all 16 of them. The block may hold
// floats or 32-bit integers.

#include <immintrin.h>

namespace rootdk::cpu {
namespace {

inline __m512 add_lanes(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
inline __m512i add_lanes(__m512i a, __m512i b) { return _mm512_add_epi32(a, b); }
inline __m512 as_floats(__m512 x) { return x; }
inline __m512 as_floats(__m512i x) { return _mm512_castsi512_ps(x); }
inline void from_floats(__m512 x, __m512& to) { to = x; }
inline void from_floats(__m512 x, __m512i& to) { to = _mm512_castps_si512(x); }

// a and b by 32-bit lanes: even lanes of the result sum pairs of a, odd ones pairs of b.
template <class V>
inline V add_neighbours(V a, V b) {
  V low, high;
  from_floats(_mm512_unpacklo_ps(as_floats(a), as_floats(b)), low);
  from_floats(_mm512_unpackhi_ps(as_floats(a), as_floats(b)), high);
  return add_lanes(low, high);
}

// The same by 64-bit lanes.
template <class V>
inline V add_pairs(V a, V b) {
  const __m512d x = _mm512_castps_pd(as_floats(a)), y = _mm512_castps_pd(as_floats(b));
  V low, high;
  from_floats(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), low);
  from_floats(_mm512_castpd_ps(_mm512_unpackhi_pd(x, y)), high);
  return add_lanes(low, high);
}

// The same by 128-bit lanes: a0 + a1, a2 + a3, b0 + b1, b2 + b3.
template <class V>
inline V add_quarters(V a, V b) {
  V even, odd;
  from_floats(_mm512_shuffle_f32x4(as_floats(a), as_floats(b), 0x88), even);
  from_floats(_mm512_shuffle_f32x4(as_floats(a), as_floats(b), 0xdd), odd);
  return add_lanes(even, odd);
}

// Quarter r of the result holds the sums of block[r][0..3].
template <class V>
inline V block_sums(const V (&block)[4][4]) {
  V rows[4];
  for (int r = 0; r < 4; ++r) {
    rows[r] = add_pairs(add_neighbours(block[r][0], block[r][1]), add_neighbours(block[r][2], block[r][3]));
  }
  return add_quarters(add_quarters(rows[0], rows[1]), add_quarters(rows[2], rows[3]));
}

inline void store_quarters(__m512 x, float* to, int stride) {
  _mm_storeu_ps(to, _mm512_castps512_ps128(x));
  _mm_storeu_ps(to + stride, _mm512_extractf32x4_ps(x, 1));
  _mm_storeu_ps(to + 2 * stride, _mm512_extractf32x4_ps(x, 2));
  _mm_storeu_ps(to + 3 * stride, _mm512_extractf32x4_ps(x, 3));
}

// sums[r * stride + i] = sum over the lanes of block[r][i].
inline void store_block_sums(const __m512 (&block)[4][4], float* sums, int stride) {
  store_quarters(block_sums(block), sums, stride);
}
inline void store_block_sums(const __m512i (&block)[4][4], float* sums, int stride) {
  store_quarters(_mm512_cvtepi32_ps(block_sums(block)), sums, stride);
}

}  // namespace
}  // namespace rootdk::cpu
