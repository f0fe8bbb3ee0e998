#pragma once

// Products of the decode kernel over pairs of 16-bit numbers, on AVX-512 with vdpbf16ps and vpdpwssd: bf16 as it is
// stored, int8 widened to 16 bits. Scores pair neighbours in head_dim, which is how rows lie; weighted sums pair two
// keys, whose rows are interleaved in registers. Included once per target: internal linkage.

#include <immintrin.h>

#include "cpu/kernel/decode_two_keys.h"

namespace rootdk::cpu {
namespace {

constexpr int kPairedLanes = 32;  // 16-bit lanes of a vector

inline __mmask32 first_lanes(int n) { return n >= 32 ? 0xffffffffu : (1u << n) - 1u; }
inline __mmask16 first_half(int n) { return static_cast<__mmask16>((1u << n) - 1u); }

// bf16 times bf16. Queries and weights that are no bf16 numbers are split into two: x = high + low to 16 bits.
struct Bf16Pairs {
  using Element = uint16_t;
  using Lane = uint16_t;
  using Vector = __m512i;
  using Sum = __m512;
  static constexpr int kMaxPlanes = 2;
  static constexpr int kKeyLanes = 16;  // of a vector that two keys share

  // Halves of one vector from two keys.
  static __m512i load_two(const uint16_t* a, const uint16_t* b) {
    return join(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(a)),
                _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b)));
  }
  static __m512i load_two_first(const uint16_t* a, const uint16_t* b, int n) {
    return join(_mm256_maskz_loadu_epi16(first_half(n), a), _mm256_maskz_loadu_epi16(first_half(n), b));
  }
  static __m512i load(const uint16_t* p) { return _mm512_loadu_si512(p); }
  static __m512i load_first(const uint16_t* p, int n) { return _mm512_maskz_loadu_epi16(first_lanes(n), p); }
  static Sum zero() { return _mm512_setzero_ps(); }
  static Sum dot(Sum sum, __m512i a, __m512i b) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
  static __m512 as_float(Sum sum) { return sum; }

  static __m512i load_query(const uint16_t* p) { return _mm512_loadu_si512(p); }
  // 16 floats, twice in each plane.
  static void store_query(__m512 x, int planes, uint16_t* to, int plane_stride) {
    split(x, x, planes, to, plane_stride);
  }
  // Two vectors of floats as 32 lanes a plane.
  static void split(__m512 x, __m512 y, int planes, uint16_t* to, int plane_stride) {
    for (int plane = 0; plane < planes; ++plane) {
      const auto rounded = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(y, x));
      _mm512_storeu_si512(to + plane * plane_stride, rounded);
      if (plane + 1 == planes) break;
      x = _mm512_sub_ps(x, widen(_mm512_castsi512_si256(rounded)));
      y = _mm512_sub_ps(y, widen(_mm512_extracti64x4_epi64(rounded, 1)));
    }
  }
  // Queries are exact, or as near as two planes come.
  static float query_factor(const float*, int) { return 1.0f; }
  static float weight_factor(const float*) { return 1.0f; }

 private:
  static __m512i join(__m256i low, __m256i high) { return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1); }
  static __m512 widen(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }
};

// 16-bit integers times int8. Queries and weights are scaled so that their largest magnitude fills 15 bits, less where
// a long sum could overflow.
struct Int8Pairs {
  using Element = int8_t;
  using Lane = int16_t;
  using Vector = __m512i;
  using Sum = __m512i;
  static constexpr int kMaxPlanes = 1;
  static constexpr int kKeyLanes = 16;  // of a vector that two keys share

  static __m512i load_two(const int8_t* a, const int8_t* b) {
    return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a)),
                 _mm_loadu_si128(reinterpret_cast<const __m128i*>(b)));
  }
  static __m512i load_two_first(const int8_t* a, const int8_t* b, int n) {
    return widen(_mm_maskz_loadu_epi8(first_half(n), a), _mm_maskz_loadu_epi8(first_half(n), b));
  }
  static __m512i load(const int8_t* p) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static __m512i load_first(const int8_t* p, int n) {
    return _mm512_cvtepi8_epi16(_mm256_maskz_loadu_epi8(first_lanes(n), p));
  }
  static Sum zero() { return _mm512_setzero_si512(); }
  static Sum dot(Sum sum, __m512i a, __m512i b) { return _mm512_dpwssd_epi32(sum, a, b); }
  static __m512 as_float(Sum sum) { return _mm512_cvtepi32_ps(sum); }

  static __m512i load_query(const int16_t* p) { return _mm512_loadu_si512(p); }
  static void store_query(__m512 x, int planes, int16_t* to, int plane_stride) {
    split(x, x, planes, to, plane_stride);
  }
  static void split(__m512 x, __m512 y, int, int16_t* to, int) {
    const __m256i low = _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(x));
    const __m256i high = _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(y));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 16), high);
  }
  static float query_factor(const float* q, int head_dim) {
    const float sum_limit = 2147483520.0f / (127.0f * static_cast<float>(head_dim));
    return largest(q, head_dim) / (sum_limit < 32767.0f ? sum_limit : 32767.0f);
  }
  static float weight_factor(const float* p) { return largest(p, kTileKeys) / 32767.0f; }

 private:
  static __m512i widen(__m128i a, __m128i b) {
    return _mm512_cvtepi8_epi16(_mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1));
  }
  // The largest magnitude; NaN where there is one.
  static float largest(const float* x, int n) {
    __m512 top = _mm512_setzero_ps();
    __mmask16 nan = 0;
    for (int i = 0; i < n; i += 16) {
      const __m512 magnitude = _mm512_abs_ps(Simd::load_first(x + i, smaller(16, n - i)));
      nan = static_cast<__mmask16>(nan | _mm512_cmp_ps_mask(magnitude, magnitude, _CMP_UNORD_Q));
      top = _mm512_max_ps(top, magnitude);
    }
    return nan ? __builtin_nanf("") : _mm512_reduce_max_ps(top);
  }
};

template <class Pairs>
struct PairedProduct : TwoKeyScores<Pairs> {
  using Element = typename Pairs::Element;
  using Sum = typename Pairs::Sum;
  using Weight = typename Pairs::Lane;
  using Query = typename TwoKeyScores<Pairs>::Query;
  static constexpr int kWeightPlanes = Pairs::kMaxPlanes;
  static constexpr int kValueColumns = 4 * kPairedLanes;

  // The weights of one row, [kTileKeys] in each plane. Returns the factor that restores them.
  static float store_weights(const Query& q, const float* p, Weight* weights) {
    const float factor = Pairs::weight_factor(p);
    const __m512 inverse = Simd::set1(inverse_of(factor));
    for (int t = 0; t < kTileKeys; t += kPairedLanes) {
      Pairs::split(_mm512_mul_ps(Simd::load(p + t), inverse), _mm512_mul_ps(Simd::load(p + t + 16), inverse), q.planes,
                   weights + t, kRowBlock * kTileKeys);
    }
    return factor;
  }

  template <class Values>
  static void add_values(const Query& q, const Values& values, const RowStates& state, int first_row, int value_dim) {
    if (q.planes == 1) return add_planes<1>(values, state, first_row, value_dim);
    if constexpr (Pairs::kMaxPlanes == 2) add_planes<2>(values, state, first_row, value_dim);
  }

 private:
  template <int kPlanes, class Values>
  static void add_planes(const Values& values, const RowStates& state, int first_row, int value_dim) {
    auto whole = [](const Element* p) { return Pairs::load(p); };
    for (int r = 0; r < kRowBlock; r += kPassRows) {
      int d = 0;
      for (; d + kValueColumns <= value_dim; d += kValueColumns) {
        add_block<kPlanes, kValueColumns / kPairedLanes>(values, state, {first_row, r, d}, whole);
      }
      for (; d + kPairedLanes <= value_dim; d += kPairedLanes) {
        add_block<kPlanes, 1>(values, state, {first_row, r, d}, whole);
      }
      if (const int left = value_dim - d; left > 0) {
        add_block<kPlanes, 1>(values, state, {first_row, r, d},
                              [left](const Element* p) { return Pairs::load_first(p, left); });
      }
    }
  }

  // 2 rows by kBlocks * 32 columns of the output. Interleaving two rows v0, v1 gives, in each 128-bit quarter, the pairs
  // of columns 0 to 3 in `low` and of columns 4 to 7 in `high`.
  template <int kPlanes, int kBlocks, class Values, class Load>
  __attribute__((noinline)) static void add_block(const Values& values, const RowStates& state, BlockOrigin at,
                                                  Load load) {
    Sum low[kPassRows][kBlocks], high[kPassRows][kBlocks];
    for (int r = 0; r < kPassRows; ++r) {
      for (int c = 0; c < kBlocks; ++c) low[r][c] = high[r][c] = Pairs::zero();
    }
    const Weight* weights = values.weights + at.row * kTileKeys;
    values.template for_each_pair<kBlocks * kPairedLanes>(
        at, [&](int column, const Element* row0, const Element* row1) {
          for (int c = 0; c < kBlocks; ++c) {
            const __m512i v0 = load(row0 + c * kPairedLanes), v1 = load(row1 + c * kPairedLanes);
            const __m512i even = _mm512_unpacklo_epi16(v0, v1), odd = _mm512_unpackhi_epi16(v0, v1);
            for (int plane = 0; plane < kPlanes; ++plane) {
              for (int r = 0; r < kPassRows; ++r) {
                const __m512i p = pair_of(weights + (plane * kRowBlock + r) * kTileKeys + column);
                low[r][c] = Pairs::dot(low[r][c], p, even);
                high[r][c] = Pairs::dot(high[r][c], p, odd);
              }
            }
          }
        });
    for (int r = 0; r < kPassRows; ++r) {
      float* out = state.out + (at.first_row + at.row + r) * state.out_stride + at.column;
      for (int c = 0; c < kBlocks; ++c) {
        store_sums(Pairs::as_float(low[r][c]), Pairs::as_float(high[r][c]), values.restores[at.row + r],
                   values.factors[at.row + r], out + c * kPairedLanes);
      }
    }
  }

  // The weights of two neighbouring keys in every lane.
  static __m512i pair_of(const Weight* p) {
    int32_t pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return _mm512_set1_epi32(pair);
  }

  // out = out * factor + sums * restore, back in the order of the columns.
  static void store_sums(__m512 low, __m512 high, float restore, float factor, float* out) {
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    const __m512 sums[2] = {_mm512_permutex2var_ps(low, first, high), _mm512_permutex2var_ps(low, second, high)};
    for (int i = 0; i < 2; ++i) {
      const __m512 before = _mm512_mul_ps(_mm512_loadu_ps(out + 16 * i), _mm512_set1_ps(factor));
      _mm512_storeu_ps(out + 16 * i, _mm512_fmadd_ps(sums[i], _mm512_set1_ps(restore), before));
    }
  }
};

}  // namespace
}  // namespace rootdk::cpu
