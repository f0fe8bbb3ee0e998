#pragma once

// Products of the decode kernel over pairs of bf16 numbers, as they are stored, on AVX-512 with vdpbf16ps. Scores pair
// neighbours in head_dim, as rows are stored; weighted sums pair two keys, whose rows are interleaved in registers.
// Included once per target: internal linkage.

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
  static void store_sums(const Sum (&sums)[4][4], float* to, int stride) { store_block_sums(sums, to, stride); }

  // Two neighbours, a pair of weights, in every lane.
  static __m512i pair_of(const uint16_t* p) {
    int32_t pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return _mm512_set1_epi32(pair);
  }

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

 private:
  static __m512 widen(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }
};

// What PromptProduct multiplies: pairs of bf16 numbers. Load makes 32 of them from elements of a cache, of which `n`
// are there.
template <class Given, class Sums, class Load>
struct PairedUnits {
  using Lanes = Given;
  using Element = typename Lanes::Element;
  using Lane = uint16_t;
  using Order = Sums;
  static constexpr int kUnit = 2;
  static constexpr int kMaxPlanes = Bf16Pairs::kMaxPlanes;

  static Vec load(const Element* p, int n) { return _mm512_castsi512_ps(n > 0 ? Load::load(p, n) : __m512i{}); }
  static __m512i load_lanes(const uint16_t* p) { return _mm512_loadu_si512(p); }
  static __m512i spread(const uint16_t* p) { return Bf16Pairs::pair_of(p); }
  static Vec dot(Vec sum, __m512i a, __m512i b) { return Bf16Pairs::dot(sum, a, b); }

  // Two rows of values, or zeros, side by side in panels.
  template <int kPanel>
  static void store_rows(const Element* const (&rows)[2], int value_dim, uint16_t* to, ptrdiff_t panel_stride) {
    const __m512i places = _mm512_set1_epi32(0x00200000);  // the second vector counts from 32
    const __m512i counted = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i first = _mm512_add_epi32(places, _mm512_mullo_epi32(counted, _mm512_set1_epi32(0x00010001)));
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(0x00100010));
    for (int d = 0; d < round_up(value_dim, kPanel); d += kPairedLanes) {
      __m512i x[2];
      for (int i = 0; i < 2; ++i) {
        x[i] = rows[i] && d < value_dim ? Load::load(rows[i] + d, value_dim - d) : _mm512_setzero_si512();
      }
      uint16_t* at = to + d / kPanel * panel_stride + d % kPanel * 2;
      _mm512_storeu_si512(at, _mm512_permutex2var_epi16(x[0], first, x[1]));
      _mm512_storeu_si512(at + kPairedLanes, _mm512_permutex2var_epi16(x[0], second, x[1]));
    }
  }
};

struct LoadBf16 {
  static __m512i load(const uint16_t* p, int n) {
    return n >= kPairedLanes ? Bf16Pairs::load(p) : Bf16Pairs::load_first(p, n);
  }
};

// Weights as pairs of bf16 numbers, for a Product that adds values with them (`add_planes`).
template <class Product, int kTileKeys>
struct PairedWeights {
  using Weight = Bf16Pairs::Lane;
  static constexpr int kWeightPlanes = Bf16Pairs::kMaxPlanes;

  // The weights of one row, [kTileKeys] in each plane. Returns the factor that restores them.
  template <class Query>
  static float store_weights(const Query& q, const Vec (&p)[kTileKeys / kWidth], Weight* weights, int plane_stride) {
    for (int v = 0; v < kTileKeys / kWidth; v += 2) {
      Bf16Pairs::split(p[v], p[v + 1], q.planes, weights + v * kWidth, plane_stride);
    }
    return 1.0f;
  }

  // out = out * factor + weights v for the rows of a block, which begins at first_row.
  template <class Query, class Values>
  static void add_values(const Query& q, const Values& values, const RowStates& state, int first_row) {
    q.planes == 1 ? Product::template add_planes<1>(values, state, first_row)
                  : Product::template add_planes<2>(values, state, first_row);
  }
};

// out = out * factor + sums of 32 columns, back in their order: in each quarter, `low` has the sums of the quarter's
// first four columns and `high` those of the others.
inline void join_interleaved(__m512 low, __m512 high, float factor, float* out) {
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i second = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  const __m512 sums[2] = {_mm512_permutex2var_ps(low, first, high), _mm512_permutex2var_ps(low, second, high)};
  for (int i = 0; i < 2; ++i) {
    const __m512 before = _mm512_loadu_ps(out + 16 * i);
    _mm512_storeu_ps(out + 16 * i, _mm512_fmadd_ps(before, _mm512_set1_ps(factor), sums[i]));
  }
}

struct Bf16Product : FourKeyScores<Bf16Pairs>, PairedWeights<Bf16Product, Bf16Pairs::kTileKeys> {
  using Lanes = Bf16Pairs;
  using Prompt = PromptProduct<PairedUnits<Lanes, Chains<1, kBlockSumDistances>, LoadBf16>>;
  static constexpr int kPassRows = Bf16Pairs::kPassRows;
  static constexpr int kValueColumns = kRowBlock / kPassRows * 2 * kPairedLanes;

  template <int kPlanes, class Values>
  static void add_planes(const Values& values, const RowStates& state, int first_row) {
    // Short rows of values are not read in order, but are interleaved once for all rows.
    values.value_dim < kValueColumns ? add_passes<kPlanes, kRowBlock>(values, state, first_row)
                                     : add_passes<kPlanes, kPassRows>(values, state, first_row);
  }

 private:
  // kRows rows by as many columns as there are registers for.
  template <int kPlanes, int kRows, class Values>
  static void add_passes(const Values& values, const RowStates& state, int first_row) {
    constexpr int kColumns = kRowBlock / kRows * 2 * kPairedLanes;
    for_each_pass<kRows, kColumns, kPairedLanes>(
        values.value_dim,
        [&](const ValuePass& pass) {
          return add_block<kPlanes, kRows, kColumns / kPairedLanes>(
              values, state, first_row, pass, [](const Element* p) { return Bf16Pairs::load(p); });
        },
        [&](const ValuePass& pass, int columns) {
          return add_block<kPlanes, kRows, 1>(values, state, first_row, pass, [columns](const Element* p) {
            return Bf16Pairs::load_first(p, columns);
          });
        });
  }

  // kRows rows by kBlocks * 32 columns of the output. Interleaving two rows v0, v1 gives, in each 128-bit quarter, the
  // pairs of columns 0 to 3 in `low` and of columns 4 to 7 in `high`.
  template <int kPlanes, int kRows, int kBlocks, class Values, class Load>
  __attribute__((noinline)) static int add_block(const Values& values, const RowStates& state, int first_row,
                                                 const ValuePass& pass, Load load) {
    Sum low[kRows][kBlocks], high[kRows][kBlocks];
    unrolled<kRows * kBlocks>([&](int i) __attribute__((always_inline)) {
      low[i / kBlocks][i % kBlocks] = high[i / kBlocks][i % kBlocks] = Bf16Pairs::zero();
    });
    const Weight* weights = values.weights + pass.row * kTileKeys;
    constexpr int kShare = Values::share(kRows, kBlocks * kPairedLanes);
    values.template for_each_key_group<2, kShare>(
        pass, [&](int key, const Element* const(&rows)[2]) __attribute__((always_inline)) {
          __m512i p[kPlanes][kRows];
          for (int plane = 0; plane < kPlanes; ++plane) {
            for (int r = 0; r < kRows; ++r)
              p[plane][r] = Bf16Pairs::pair_of(weights + (plane * kRowBlock + r) * kTileKeys + key);
          }
          for (int c = 0; c < kBlocks; ++c) {
            const __m512i v0 = load(rows[0] + c * kPairedLanes), v1 = load(rows[1] + c * kPairedLanes);
            const __m512i even = _mm512_unpacklo_epi16(v0, v1), odd = _mm512_unpackhi_epi16(v0, v1);
            for (int plane = 0; plane < kPlanes; ++plane) {
              for (int r = 0; r < kRows; ++r) {
                low[r][c] = Bf16Pairs::dot(low[r][c], p[plane][r], even);
                high[r][c] = Bf16Pairs::dot(high[r][c], p[plane][r], odd);
              }
            }
          }
        });
    float* out = state.out + (first_row + pass.row) * state.out_stride + pass.column;
    unrolled<kRows * kBlocks>([&](int i) __attribute__((always_inline)) {
      const int r = i / kBlocks, c = i % kBlocks;
      join_interleaved(low[r][c], high[r][c], values.factors[pass.row + r],
                       out + r * state.out_stride + c * kPairedLanes);
    });
    return kShare;
  }
};

}  // namespace
}  // namespace rootdk::cpu
