#pragma once

// The sums over the lanes of a 4 x 4 block of vectors, each of which holds one sum in its lower and another in its
// upper half: a tree of 14 additions for all 32 of them. The block may hold floats or 32-bit integers.

#include <immintrin.h>

namespace rootdk::cpu {
namespace {

inline __m512 add_lanes(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
inline __m512i add_lanes(__m512i a, __m512i b) { return _mm512_add_epi32(a, b); }
inline __m512 as_floats(__m512 x) { return x; }
inline __m512 as_floats(__m512i x) { return _mm512_castsi512_ps(x); }
inline void from_floats(__m512 x, __m512& to) { to = x; }
inline void from_floats(__m512 x, __m512i& to) { to = _mm512_castps_si512(x); }
inline __m512 to_numbers(__m512 x) { return x; }
inline __m512 to_numbers(__m512i x) { return _mm512_cvtepi32_ps(x); }

// By 32-bit lanes: even lanes of the result sum pairs of a, odd ones pairs of b.
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

// sums[r * stride + i] for the lower half of block[r][i], sums[r * stride + 4 + i] for the upper.
template <class V>
inline void store_half_sums(const V (&block)[4][4], float* sums, int stride) {
  V rows[4];
  for (int r = 0; r < 4; ++r) {
    rows[r] = add_pairs(add_neighbours(block[r][0], block[r][1]), add_neighbours(block[r][2], block[r][3]));
  }
  for (int r = 0; r < 4; r += 2) {
    const __m512 both = to_numbers(add_quarters(rows[r], rows[r + 1]));
    _mm256_storeu_ps(sums + r * stride, _mm512_castps512_ps256(both));
    _mm256_storeu_ps(sums + (r + 1) * stride, _mm512_extractf32x8_ps(both, 1));
  }
}

}  // namespace
}  // namespace rootdk::cpu
