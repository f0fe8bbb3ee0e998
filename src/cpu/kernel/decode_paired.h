#pragma once

// Products of the decode kernel over pairs of 16-bit numbers, on AVX-512 with vdpbf16ps and vpdpwssd: bf16 as it is
// stored, int8 widened to 16 bits. Scores pair neighbours in head_dim, which is how rows lie; weighted sums pair two
// keys, whose rows are interleaved in registers. Included once per target: internal linkage.

#include <immintrin.h>

#include "cpu/kernel/decode_avx512.h"

namespace rootdk::cpu {
namespace {

constexpr int kPairedLanes = 32;  // 16-bit lanes of a vector

inline __mmask32 first_lanes(int n) { return n >= 32 ? 0xffffffffu : (1u << n) - 1u; }

// bf16 times bf16. Queries and weights that are no bf16 numbers are split into two: x = high + low to 16 bits.
struct Bf16Pairs : InOrder {
  using Element = uint16_t;
  using Lane = uint16_t;
  using Vector = __m512i;
  using Sum = __m512;
  static constexpr int kMaxPlanes = 2;
  static constexpr int kLanes = kPairedLanes;

  static __m512i load(const uint16_t* p) { return _mm512_loadu_si512(p); }
  static __m512i load_first(const uint16_t* p, int n) { return _mm512_maskz_loadu_epi16(first_lanes(n), p); }
  static Sum zero() { return _mm512_setzero_ps(); }
  static Sum dot(Sum sum, __m512i a, __m512i b) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
  static __m512 as_float(Sum sum) { return sum; }
  static void store_sums(const Sum (&sums)[4][4], float* to, int stride) { store_block_sums(sums, to, stride); }

  static __m512i load_query(const uint16_t* p) { return _mm512_loadu_si512(p); }
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
  static float weight_factor(const Vec (&)[kTileKeys / kWidth]) { return 1.0f; }

 private:
  static __m512 widen(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }
};

// 16-bit integers times int8. Queries and weights are scaled so that their largest magnitude fills 15 bits, less where
// a long sum could overflow.
struct Int8Pairs : WidenOnce {
  using Element = int8_t;
  using Lane = int16_t;
  using Vector = __m512i;
  using Sum = __m512i;
  static constexpr int kMaxPlanes = 1;
  static constexpr int kLanes = kPairedLanes;

  static __m512i load(const int8_t* p) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static __m512i load_first(const int8_t* p, int n) {
    return _mm512_cvtepi8_epi16(_mm256_maskz_loadu_epi8(first_lanes(n), p));
  }
  static Sum zero() { return _mm512_setzero_si512(); }
  static Sum dot(Sum sum, __m512i a, __m512i b) { return _mm512_dpwssd_epi32(sum, a, b); }
  static __m512 as_float(Sum sum) { return _mm512_cvtepi32_ps(sum); }
  static void store_sums(const Sum (&sums)[4][4], float* to, int stride) { store_block_sums(sums, to, stride); }

  static __m512i load_query(const int16_t* p) { return _mm512_loadu_si512(p); }
  static void split(__m512 x, __m512 y, int, int16_t* to, int) {
    const __m256i low = _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(x));
    const __m256i high = _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(y));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 16), high);
  }
  static float query_factor(const float* q, int head_dim) {
    const float sum_limit = 2147483520.0f / (127.0f * static_cast<float>(head_dim));
    Largest largest;
    for (int i = 0; i < head_dim; i += kWidth) largest.add(Simd::load_first(q + i, smaller(kWidth, head_dim - i)));
    return largest.value() / (sum_limit < 32767.0f ? sum_limit : 32767.0f);
  }
  static float weight_factor(const Vec (&p)[kTileKeys / kWidth]) {
    Largest largest;
    for (const Vec& x : p) largest.add(x);
    return largest.value() / 32767.0f;
  }

 private:
  // The largest magnitude; NaN where there is one.
  class Largest {
   public:
    void add(__m512 x) {
      const __m512 magnitude = _mm512_abs_ps(x);
      nan_ = static_cast<__mmask16>(nan_ | _mm512_cmp_ps_mask(magnitude, magnitude, _CMP_UNORD_Q));
      top_ = _mm512_max_ps(top_, magnitude);
    }
    float value() const { return nan_ ? __builtin_nanf("") : _mm512_reduce_max_ps(top_); }

   private:
    __m512 top_ = _mm512_setzero_ps();
    __mmask16 nan_ = 0;
  };
};

template <class Pairs>
struct PairedProduct : FourKeyScores<Pairs> {
  using Lanes = Pairs;
  using Element = typename Pairs::Element;
  using Sum = typename Pairs::Sum;
  using Weight = typename Pairs::Lane;
  using Query = typename FourKeyScores<Pairs>::Query;
  static constexpr int kWeightPlanes = Pairs::kMaxPlanes;
  static constexpr int kPassRows = Pairs::kPassRows;
  static constexpr int kValueColumns = kRowBlock / kPassRows * 2 * kPairedLanes;

  // The weights of one row, [kMaxTileKeys] in each plane. Returns the factor that restores them.
  static float store_weights(const Query& q, const Vec (&p)[Pairs::kTileKeys / kWidth], Weight* weights) {
    const float factor = Pairs::weight_factor(p);
    const __m512 inverse = Simd::set1(inverse_of(factor));
    for (int v = 0; v < Pairs::kTileKeys / kWidth; v += 2) {
      Pairs::split(_mm512_mul_ps(p[v], inverse), _mm512_mul_ps(p[v + 1], inverse), q.planes, weights + v * kWidth,
                   kRowBlock * kMaxTileKeys);
    }
    return factor;
  }

  template <class Values>
  static void add_values(const Query& q, const Values& values, const RowStates& state, int first_row) {
    if (q.planes == 1) return add_planes<1>(values, state, first_row);
    if constexpr (Pairs::kMaxPlanes == 2) add_planes<2>(values, state, first_row);
  }

 private:
  template <int kPlanes, class Values>
  static void add_planes(const Values& values, const RowStates& state, int first_row) {
    for_each_pass<kPassRows, kValueColumns, kPairedLanes>(
        values.value_dim,
        [&](const ValuePass& pass) {
          return add_block<kPlanes, kValueColumns / kPairedLanes>(values, state, first_row, pass,
                                                                  [](const Element* p) { return Pairs::load(p); });
        },
        [&](const ValuePass& pass, int columns) {
          return add_block<kPlanes, 1>(values, state, first_row, pass,
                                       [columns](const Element* p) { return Pairs::load_first(p, columns); });
        });
  }

  // kPassRows rows by kBlocks * 32 columns of the output. Interleaving two rows v0, v1 gives, in each 128-bit quarter,
  // the pairs of columns 0 to 3 in `low` and of columns 4 to 7 in `high`.
  template <int kPlanes, int kBlocks, class Values, class Load>
  __attribute__((noinline)) static int add_block(const Values& values, const RowStates& state, int first_row,
                                                 const ValuePass& pass, Load load) {
    Sum low[kPassRows][kBlocks], high[kPassRows][kBlocks];
    for (int r = 0; r < kPassRows; ++r) {
      for (int c = 0; c < kBlocks; ++c) low[r][c] = high[r][c] = Pairs::zero();
    }
    const Weight* weights = values.weights + pass.row * kMaxTileKeys;
    constexpr int kShare = Values::share(kPassRows, kBlocks * kPairedLanes);
    values.template for_each_pair<kShare>(
        pass, [&](int key, const Element* row0, const Element* row1) __attribute__((always_inline)) {
          __m512i p[kPlanes][kPassRows];
          for (int plane = 0; plane < kPlanes; ++plane) {
            for (int r = 0; r < kPassRows; ++r)
              p[plane][r] = pair_of(weights + (plane * kRowBlock + r) * kMaxTileKeys + key);
          }
          for (int c = 0; c < kBlocks; ++c) {
            const __m512i v0 = load(row0 + c * kPairedLanes), v1 = load(row1 + c * kPairedLanes);
            const __m512i even = _mm512_unpacklo_epi16(v0, v1), odd = _mm512_unpackhi_epi16(v0, v1);
            for (int plane = 0; plane < kPlanes; ++plane) {
              for (int r = 0; r < kPassRows; ++r) {
                low[r][c] = Pairs::dot(low[r][c], p[plane][r], even);
                high[r][c] = Pairs::dot(high[r][c], p[plane][r], odd);
              }
            }
          }
        });
    for (int r = 0; r < kPassRows; ++r) {
      float* out = state.out + (first_row + pass.row + r) * state.out_stride + pass.column;
      for (int c = 0; c < kBlocks; ++c) {
        join_columns(Pairs::as_float(low[r][c]), Pairs::as_float(high[r][c]), values.restores[pass.row + r],
                     values.factors[pass.row + r], out + c * kPairedLanes);
      }
    }
    return kShare;
  }

  // The weights of two neighbouring keys in every lane.
  static __m512i pair_of(const Weight* p) {
    int32_t pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return _mm512_set1_epi32(pair);
  }

  // out = out * factor + sums * restore, back in the order of the columns.
  static void join_columns(__m512 low, __m512 high, float restore, float factor, float* out) {
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
