#pragma once

// Register-blocked products of f32 on packed panels. Included once per target: internal linkage.

#include "cpu/kernel/peak.h"

namespace rootdk::cpu {
namespace {

// The left operand of a product, [rows, depth]: element (i, k) is data[i * row_stride + k * depth_stride].
template <class Unit>
struct Left {
  const Unit* data;
  ptrdiff_t row_stride;
  ptrdiff_t depth_stride = 1;
};

// One register tile, c [R, NV vectors] = a [R, depth] b [depth, panel]; with kAccumulate c = factor[row] c + a b.
// Summing each tile from zero before it joins c keeps the error of long sums small.
template <int R, int NV, bool kAccumulate>
void float_tile(Left<float> a, const float* b, int depth, float* c, ptrdiff_t ldc, const float* factor) {
  constexpr int kPanel = Simd::kPanelVectors * kWidth;
  Vec sum[R][NV];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < NV; ++j) sum[i][j] = Simd::zero();
  }
  const float* row[R];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) row[i] = a.data + i * a.row_stride;
  for (ptrdiff_t k = 0; k < depth; ++k, b += kPanel) {
    Vec right[NV];
#pragma GCC unroll 8
    for (int j = 0; j < NV; ++j) right[j] = Simd::load(b + j * kWidth);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const Vec left = Simd::set1(row[i][k * a.depth_stride]);
#pragma GCC unroll 8
      for (int j = 0; j < NV; ++j) sum[i][j] = Simd::fma(left, right[j], sum[i][j]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < NV; ++j) {
      float* target = c + i * ldc + j * kWidth;
      if constexpr (kAccumulate) {
        sum[i][j] = Simd::fma(Simd::set1(factor[i]), Simd::load(target), sum[i][j]);
      } else {
        sum[i][j] = Simd::add(sum[i][j], Simd::zero());  // no -0: as if added to an empty c
      }
      Simd::store(target, sum[i][j]);
    }
  }
}

// Chooses the tile for a number of rows and vectors that is known only now.
template <template <int, int, bool> class Tile, bool kAccumulate, int R = Simd::kRows, int NV = Simd::kPanelVectors,
          class... Arguments>
void with_tile(int rows, int vectors, Arguments... arguments) {
  if (R > 1 && rows < R) {
    if constexpr (R > 1) with_tile<Tile, kAccumulate, R - 1, NV>(rows, vectors, arguments...);
  } else if (NV > 1 && vectors < NV) {
    if constexpr (NV > 1) with_tile<Tile, kAccumulate, R, NV - 1>(rows, vectors, arguments...);
  } else {
    Tile<R, NV, kAccumulate>::run(arguments...);
  }
}

// Products in f32. The panel is [depth, kPanel]; a panel of keys holds head dimensions as depth (k transposed), a panel
// of values holds keys as depth.
struct FloatGemm {
  using Element = float;
  using Unit = float;                       // what the left operand is read in
  static constexpr int kDepthMultiple = 1;  // depth is a multiple of it
  static constexpr int kRows = Simd::kRows;
  static constexpr int kPanel = Simd::kPanelVectors * kWidth;
  static constexpr int kUnit = 1;  // elements in a Unit

  static constexpr int kTileKeys = kPanel >= 32 ? 256 : 128;  // half of it for rows of more than
  static constexpr int kTileRowBytes = 2048;                  // so many bytes of keys and values
  static constexpr int kRowPadding = 0;
  static constexpr int kBlockRows = 96;
  static constexpr int kLeftRows = 1;

  struct Thread {};  // state a thread needs around its products: none

  static int64_t peak(int64_t rounds, float* sum) { return float_peak(rounds, sum); }
  static float widen(float x) { return x; }
  // Two vectors of weights as a left operand.
  static void store_weights(float* to, Vec first, Vec second) {
    Simd::store(to, first);
    Simd::store(to + kWidth, second);
  }

  template <int R, int NV, bool kAccumulate>
  struct Tile {
    static void run(Left<float> a, const float* b, int depth, float* c, ptrdiff_t ldc, const float* factor) {
      float_tile<R, NV, kAccumulate>(a, b, depth, c, ldc, factor);
    }
  };

  // c [rows <= kRows, columns <= kPanel] = a b, columns rounded up to whole vectors.
  static void multiply(int rows, int columns, Left<float> a, const float* panel, int depth, float* c, ptrdiff_t ldc) {
    with_tile<Tile, false>(rows, (columns + kWidth - 1) / kWidth, a, panel, depth, c, ldc,
                           static_cast<const float*>(nullptr));
  }
  // c [row] = factor[row] c [row] + (a b) [row]
  static void multiply_add(int rows, int columns, Left<float> a, const float* panel, int depth, float* c, ptrdiff_t ldc,
                           const float* factor) {
    with_tile<Tile, true>(rows, (columns + kWidth - 1) / kWidth, a, panel, depth, c, ldc, factor);
  }
};

}  // namespace
}  // namespace rootdk::cpu
