#pragma once

// Register-blocked products of bf16 (Pairs in simd/pairs_*.h), accumulated in f32. Included once per target: internal
// linkage.

#include "cpu/kernel/gemm_f32.h"

namespace rootdk::cpu {
namespace {

inline float widen_bf16(uint16_t x) { return __builtin_bit_cast(float, static_cast<uint32_t>(x) << 16); }
inline void store_bf16_pair(uint16_t* to, Vec first, Vec second) { Pairs::store(to, Pairs::round(first, second)); }

// As float_peak, on pairs of bf16.
inline int64_t bf16_peak(int64_t rounds, float* sum) {
  Vec chain[kPeakChains];
#pragma GCC unroll 12
  for (int i = 0; i < kPeakChains; ++i) chain[i] = Simd::set1(static_cast<float>(i));
  constexpr uint32_t kPair = 0x3c003c00;
  Pairs::Vector a = Pairs::spread(&kPair);
  const Pairs::Vector b = a;
  for (int64_t round = 0; round < rounds; ++round) {
    Pairs::hide(a);  // the product changes nothing from round to round, as far as the compiler knows
#pragma GCC unroll 12
    for (int i = 0; i < kPeakChains; ++i) chain[i] = Pairs::dot(chain[i], a, b);
  }
  Vec total = Simd::zero();
#pragma GCC unroll 12
  for (int i = 0; i < kPeakChains; ++i) total = Simd::add(total, chain[i]);
  *sum = Simd::reduce_add(total);
  return rounds * kPeakChains * kWidth * 4;
}

// As float_tile, with pairs of neighbours in depth as units: a [R, pairs], b [pairs, panel, 2].
template <int R, int NV, Join kJoin>
void bf16_tile(const uint32_t* left, ptrdiff_t row_stride, ptrdiff_t depth_stride, const uint16_t* b, int pairs,
               float* c, ptrdiff_t ldc, const float* factor) {
  constexpr int kPanel = Simd::kPanelVectors * kWidth;
  Vec sum[R][NV];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < NV; ++j) sum[i][j] = Simd::zero();
  }
  const uint32_t* row[R];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) row[i] = left + i * row_stride;
  for (ptrdiff_t k = 0; k < pairs; ++k, b += 2 * kPanel) {
    Pairs::Vector right[NV];
#pragma GCC unroll 8
    for (int j = 0; j < NV; ++j) right[j] = Pairs::load(b + 2 * j * kWidth);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const Pairs::Vector pair = Pairs::spread(row[i] + k * depth_stride);
#pragma GCC unroll 8
      for (int j = 0; j < NV; ++j) sum[i][j] = Pairs::dot(sum[i][j], pair, right[j]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < NV; ++j) {
      float* target = c + i * ldc + j * kWidth;
      if constexpr (kJoin == Join::add) {
        sum[i][j] = Simd::fma(Simd::set1(factor[i]), Simd::load(target), sum[i][j]);
      } else if constexpr (kJoin == Join::start) {
        sum[i][j] = Simd::add(sum[i][j], Simd::zero());
      }
      Simd::store(target, sum[i][j]);
    }
  }
}

// Products in bf16. The panel is [depth / 2, kPanel, 2]; units of the left operand are pairs.
struct Bf16Gemm {
  using Element = uint16_t;
  using Unit = uint32_t;
  static constexpr int kDepthMultiple = 2;
  static constexpr int kRows = Simd::kRows;
  static constexpr int kPanel = Simd::kPanelVectors * kWidth;
  static constexpr int kUnit = 2;

  static constexpr int kTileKeys = 512;
  static constexpr int kTileRowBytes = 2048;
  static constexpr int kRowPadding = 0;
  static constexpr int kBlockRows = 96;
  static constexpr int kLeftRows = 1;

  struct Thread {};

  static int64_t peak(int64_t rounds, float* sum) { return bf16_peak(rounds, sum); }
  static float widen(uint16_t x) { return widen_bf16(x); }
  static void store_weights(uint16_t* to, Vec first, Vec second) { store_bf16_pair(to, first, second); }

  template <int R, int NV, Join kJoin>
  struct Tile {
    static void run(const uint32_t* left, ptrdiff_t row_stride, ptrdiff_t depth_stride, const uint16_t* b, int pairs,
                    float* c, ptrdiff_t ldc, const float* factor) {
      bf16_tile<R, NV, kJoin>(left, row_stride, depth_stride, b, pairs, c, ldc, factor);
    }
  };

  static void multiply(int rows, int columns, Left<uint32_t> a, const uint16_t* panel, int depth, float* c,
                       ptrdiff_t ldc) {
    with_tile<Tile, Join::write>(rows, (columns + kWidth - 1) / kWidth, a.data, a.row_stride, a.depth_stride, panel,
                                 depth / 2, c, ldc, static_cast<const float*>(nullptr));
  }
  static void start_sum(int rows, int columns, Left<uint32_t> a, const uint16_t* panel, int depth, float* c,
                        ptrdiff_t ldc) {
    with_tile<Tile, Join::start>(rows, (columns + kWidth - 1) / kWidth, a.data, a.row_stride, a.depth_stride, panel,
                                 depth / 2, c, ldc, static_cast<const float*>(nullptr));
  }
  static void multiply_add(int rows, int columns, Left<uint32_t> a, const uint16_t* panel, int depth, float* c,
                           ptrdiff_t ldc, const float* factor) {
    with_tile<Tile, Join::add>(rows, (columns + kWidth - 1) / kWidth, a.data, a.row_stride, a.depth_stride, panel,
                               depth / 2, c, ldc, factor);
  }
};

}  // namespace
}  // namespace rootdk::cpu
