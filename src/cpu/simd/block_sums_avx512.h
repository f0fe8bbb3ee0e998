#pragma once

// The sums over the lanes of each vector of a 4 x 4 block: a tree of 15 additions for all 16 of them. The block may
// hold floats or 32-bit integers.

#include <immintrin.h>

namespace rootdk::cpu {
namespace {

inline __m512 add_lanes(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
inline __m512 as_floats(__m512 x) { return x; }
inline __m512 to_numbers(__m512 x) { return x; }
inline __m512 as_floats(__m512i x) { return _mm512_castsi512_ps(x); }
inline __m512 to_numbers(__m512i x) { return _mm512_cvtepi32_ps(x); }
inline void from_floats(__m512 x, __m512& to) { to = x; }
inline void from_floats(__m512 x, __m512i& to) { to = _mm512_castps_si512(x); }
inline __m512i add_lanes(__m512i a, __m512i b) { return _mm512_add_epi32(a, b); }

template <class V>
inline V add_as(__m512 a, __m512 b) {
  V x, y;
  from_floats(a, x);
  from_floats(b, y);
  return add_lanes(x, y);
}

// In every 128-bit quarter: a0 + a2, a1 + a3, b0 + b2, b1 + b3. A blend goes where shuffles do not compete.
template <class V>
inline V add_halves(V a, V b) {
  const __m512 x = as_floats(a), y = as_floats(b);
  return add_as<V>(_mm512_mask_blend_ps(0xcccc, x, y), _mm512_shuffle_ps(x, y, 0x4e));
}

// In every quarter: a0 + a1, a2 + a3, b0 + b1, b2 + b3.
template <class V>
inline V add_neighbours(V a, V b) {
  const __m512 x = as_floats(a), y = as_floats(b);
  return add_as<V>(_mm512_shuffle_ps(x, y, 0x88), _mm512_shuffle_ps(x, y, 0xdd));
}

// By quarters: a0 + a2, a1 + a3, b0 + b2, b1 + b3.
template <class V>
inline V add_half_quarters(V a, V b) {
  const __m512 x = as_floats(a), y = as_floats(b);
  return add_as<V>(_mm512_mask_blend_ps(0xff00, x, y), _mm512_shuffle_f32x4(x, y, 0x4e));
}

// By quarters: a0 + a1, a2 + a3, b0 + b1, b2 + b3.
template <class V>
inline V add_neighbour_quarters(V a, V b) {
  const __m512 x = as_floats(a), y = as_floats(b);
  return add_as<V>(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd));
}

// In each quarter a part of the sums of four vectors.
template <class V>
inline V add_four(const V (&row)[4]) {
  return add_neighbours(add_halves(row[0], row[1]), add_halves(row[2], row[3]));
}

// The distances of the lanes that store_block_sums adds, one after another.
constexpr int kBlockSumDistances[] = {2, 1, 8, 4};

// sums[r * stride + i] for block[r][i]. Without loops, and never a call: the block is in registers.
template <class V>
inline __attribute__((always_inline)) void store_block_sums(const V (&block)[4][4], float* sums, int stride) {
  const V first = add_half_quarters(add_four(block[0]), add_four(block[1]));
  const V second = add_half_quarters(add_four(block[2]), add_four(block[3]));
  const __m512 all = to_numbers(add_neighbour_quarters(first, second));
  _mm_storeu_ps(sums, _mm512_castps512_ps128(all));
  _mm_storeu_ps(sums + stride, _mm512_extractf32x4_ps(all, 1));
  _mm_storeu_ps(sums + 2 * stride, _mm512_extractf32x4_ps(all, 2));
  _mm_storeu_ps(sums + 3 * stride, _mm512_extractf32x4_ps(all, 3));
}

}  // namespace
}  // namespace rootdk::cpu
