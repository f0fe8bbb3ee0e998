#pragma once

// Scores on AVX-512, eight keys by four rows at a time. A vector holds part of one key in its lower half and of another
// in its upper half, and queries are packed twice to match: half as many sums over lanes for the same products.
// Included once per target: internal linkage.

#include <immintrin.h>

#include "cpu/kernel/decode_tile.h"
#include "cpu/kernel/load.h"
#include "cpu/simd/block_sums_avx512.h"

namespace rootdk::cpu {
namespace {

inline float inverse_of(float x) { return x > 0.0f ? 1.0f / x : 0.0f; }

// `Lanes` says how keys are loaded and multiplied; WidenedLanes below is one.
template <class Lanes>
struct TwoKeyScores {
  using Element = typename Lanes::Element;
  using Lane = typename Lanes::Lane;
  using Sum = typename Lanes::Sum;
  using Vector = typename Lanes::Vector;
  static constexpr int kKeyLanes = Lanes::kKeyLanes;

  // Packed queries: [planes, kRowBlock, head_dim padded / kKeyLanes, 2, kKeyLanes].
  static int padded(int head_dim) { return round_up(head_dim, kKeyLanes); }
  static size_t query_bytes(int head_dim) {
    return sizeof(Lane) * Lanes::kMaxPlanes * kRowBlock * 2 * static_cast<size_t>(padded(head_dim));
  }

  struct Query {
    const Lane* rows;
    float scales[kRowBlock];  // what a score is multiplied by
    int planes;               // of queries and of weights
  };

  static Query pack(const float* q, int rows, int head_dim, bool q_is_bf16, void* packed) {
    const int stride = 2 * padded(head_dim);
    auto* to = static_cast<Lane*>(packed);
    Query query{to, {1.0f, 1.0f, 1.0f, 1.0f}, q_is_bf16 ? 1 : Lanes::kMaxPlanes};
    for (int r = 0; r < kRowBlock; ++r) {
      const float* from = q + r * head_dim;
      if (r < rows) query.scales[r] = Lanes::query_factor(from, head_dim);
      const __m512 inverse = _mm512_set1_ps(r < rows ? inverse_of(query.scales[r]) : 0.0f);
      for (int d = 0; d < padded(head_dim); d += kKeyLanes) {
        const __m512 x = r < rows ? Simd::load_first(from + d, smaller(head_dim - d, kKeyLanes)) : _mm512_setzero_ps();
        Lanes::store_query(_mm512_mul_ps(x, inverse), query.planes, to + r * stride + 2 * d, kRowBlock * stride);
      }
    }
    return query;
  }

  // scores[r * kTileKeys + i] = q_r . k_i / scales[r] for the keys of a group, rounded up to a multiple of 8.
  static void score(const Query& q, const GroupKeys<Element>& group, int head_dim, float* scores) {
    if (q.planes == 1) return score_group<1>(q, group, head_dim, scores);
    if constexpr (Lanes::kMaxPlanes == 2) score_group<2>(q, group, head_dim, scores);
  }

 private:
  // Eight rows that lie one after another, and eight of which the last may repeat.
  struct EvenRows {
    const Element* first;
    ptrdiff_t stride;
    const Element* operator()(int i, int d) const { return first + i * stride + d; }
  };
  struct ListedRows {
    const Element* rows[8];
    const Element* operator()(int i, int d) const { return rows[i] + d; }
  };

  template <int kPlanes>
  static void score_group(const Query& q, const GroupKeys<Element>& group, int head_dim, float* scores) {
    for (int t = 0; t < group.keys; t += 8) {
      group.fetch(t, 8, head_dim);
      if (t + 8 <= group.keys) {
        score_eight<kPlanes>(q, EvenRows{group.first + t * head_dim, head_dim}, head_dim, scores + t);
      } else {
        // Beyond the last key stands the last key again: the columns are masked, the memory is there.
        ListedRows listed;
        for (int i = 0; i < 8; ++i) listed.rows[i] = group.first + smaller(t + i, group.keys - 1) * head_dim;
        score_eight<kPlanes>(q, listed, head_dim, scores + t);
      }
    }
  }

  template <int kPlanes, class Rows>
  __attribute__((noinline)) static void score_eight(const Query& q, const Rows& keys, int head_dim, float* scores) {
    const ptrdiff_t stride = 2 * padded(head_dim);
    Sum sums[kRowBlock][4];
    for (auto& row : sums) {
      for (Sum& sum : row) sum = Lanes::zero();
    }
    auto step = [&](int d, auto load) __attribute__((always_inline)) {
      Vector two[4];  // keys i and i + 4
      for (int i = 0; i < 4; ++i) two[i] = load(keys(i, d), keys(i + 4, d));
      for (int plane = 0; plane < kPlanes; ++plane) {
        for (int r = 0; r < kRowBlock; ++r) {
          const Vector x = Lanes::load_query(q.rows + (plane * kRowBlock + r) * stride + 2 * d);
          for (int i = 0; i < 4; ++i) sums[r][i] = Lanes::dot(sums[r][i], x, two[i]);
        }
      }
    };
    int d = 0;
    for (; d + kKeyLanes <= head_dim; d += kKeyLanes) step(d, [](auto a, auto b) { return Lanes::load_two(a, b); });
    if (const int left = head_dim - d; left > 0) {
      step(d, [left](auto a, auto b) { return Lanes::load_two_first(a, b, left); });
    }
    store_half_sums(sums, scores, kTileKeys);
  }
};

// Elements widened to f32: 8 of each key.
template <ElementKind kind>
struct WidenedLanes {
  using Element = typename Stored<kind>::Type;
  using Lane = float;
  using Vector = __m512;
  using Sum = __m512;
  static constexpr int kMaxPlanes = 1;
  static constexpr int kKeyLanes = 8;

  static __m512 load_two(const Element* a, const Element* b) {
    if constexpr (kind == ElementKind::f32) {
      return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(a)), _mm256_loadu_ps(b), 1);
    } else {
      return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a)),
                   _mm_loadu_si128(reinterpret_cast<const __m128i*>(b)));
    }
  }
  static __m512 load_two_first(const Element* a, const Element* b, int n) {
    const auto mask = static_cast<__mmask8>((1u << n) - 1u);
    if constexpr (kind == ElementKind::f32) {
      return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_maskz_loadu_ps(mask, a)), _mm256_maskz_loadu_ps(mask, b),
                                1);
    } else {
      return widen(_mm_maskz_loadu_epi16(mask, a), _mm_maskz_loadu_epi16(mask, b));
    }
  }
  static Sum zero() { return _mm512_setzero_ps(); }
  static Sum dot(Sum sum, __m512 a, __m512 b) { return _mm512_fmadd_ps(a, b, sum); }
  static __m512 load_query(const float* p) { return _mm512_loadu_ps(p); }
  static void store_query(__m512 x, int, float* to, int) {
    const __m256 eight = _mm512_castps512_ps256(x);
    _mm256_storeu_ps(to, eight);
    _mm256_storeu_ps(to + kKeyLanes, eight);
  }
  static float query_factor(const float*, int) { return 1.0f; }

 private:
  static __m512 widen(__m128i a, __m128i b) {
    const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
    if constexpr (kind == ElementKind::f16) return _mm512_cvtph_ps(both);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(both), 16));
  }
};

// The product of an AVX-512 target for a type that it widens.
template <ElementKind kind>
using WidenedAvx512 = WidenedProduct<Stored<kind>, TwoKeyScores<WidenedLanes<kind>>>;

}  // namespace
}  // namespace rootdk::cpu
