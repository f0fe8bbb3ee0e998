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

// What becomes of a product: c = a b; c = 0 + a b, the first of a sum, which has no -0; c = factor[row] c + a b.
enum class Join { write, start, add };

// sum [R, NV vectors] += a [R, depth] b [depth, panel], kSteps of depth at a time.
template <int R, int NV, int kSteps, bool kContiguous>
inline __attribute__((always_inline)) void add_products(Vec (&sum)[R][NV], const float* left, ptrdiff_t row_stride,
                                                        ptrdiff_t depth_stride, const float* b, int depth) {
  constexpr int kPanel = Simd::kPanelVectors * kWidth;
  const ptrdiff_t step = kContiguous ? 1 : depth_stride;
  for (int k = 0; k < depth; k += kSteps, left += kSteps * step, b += kSteps * kPanel) {
#pragma GCC unroll 8
    for (int u = 0; u < kSteps; ++u) {
      Vec right[NV];
#pragma GCC unroll 8
      for (int j = 0; j < NV; ++j) right[j] = Simd::load(b + u * kPanel + j * kWidth);
#pragma GCC unroll 8
      for (int i = 0; i < R; ++i) {
        const Vec x = Simd::set1(left[i * row_stride + u * step]);
#pragma GCC unroll 8
        for (int j = 0; j < NV; ++j) sum[i][j] = Simd::fma(x, right[j], sum[i][j]);
      }
    }
  }
}

// One register tile, c [R, NV vectors]. Summing each tile from zero before it joins c keeps the error of long sums
// small.
template <int R, int NV, Join kJoin>
void float_tile(const float* left, ptrdiff_t row_stride, ptrdiff_t depth_stride, const float* b, int depth, float* c,
                ptrdiff_t ldc, const float* factor) {
  constexpr int kPanel = Simd::kPanelVectors * kWidth;
  Vec sum[R][NV];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < NV; ++j) sum[i][j] = Simd::zero();
  }
  // With other work on the second thread of a core, what counts is instructions: additions and a branch for every unit
  // of depth take 5 % of the time. With fewer registers GCC 12 would put sums into memory.
  constexpr int kSteps = 4;
  int done = 0;
  if constexpr (R == Simd::kRows && NV == Simd::kPanelVectors && kWidth == 16) {
    if (depth_stride == 1) {
      done = depth / kSteps * kSteps;
      add_products<R, NV, kSteps, true>(sum, left, row_stride, 1, b, done);
    }
  }
  add_products<R, NV, 1, false>(sum, left + done * depth_stride, row_stride, depth_stride, b + done * kPanel,
                                depth - done);
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

// Chooses the tile for a number of rows and vectors that is known only now. Arguments are numbers and pointers: a
// struct would be copied through memory, and the first loads of a tile would wait for it.
template <template <int, int, Join> class Tile, Join kJoin, int R = Simd::kRows, int NV = Simd::kPanelVectors,
          class... Arguments>
void with_tile(int rows, int vectors, Arguments... arguments) {
  if (R > 1 && rows < R) {
    if constexpr (R > 1) with_tile<Tile, kJoin, R - 1, NV>(rows, vectors, arguments...);
  } else if (NV > 1 && vectors < NV) {
    if constexpr (NV > 1) with_tile<Tile, kJoin, R, NV - 1>(rows, vectors, arguments...);
  } else {
    Tile<R, NV, kJoin>::run(arguments...);
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

  static constexpr int kTileKeys = kPanel >= 64 ? 512 : kPanel >= 32 ? 256 : 128;  // half of it for rows of more than
  static constexpr int kTileRowBytes = kPanel >= 64 ? 1024 : 2048;                 // so many bytes of keys and values
  static constexpr int kRowPadding = 0;
  static constexpr int kBlockRows = kPanel >= 64 ? 192 : 96;
  static constexpr int kLeftRows = 1;

  struct Thread {};  // state a thread needs around its products: none

  static int64_t peak(int64_t rounds, float* sum) { return float_peak(rounds, sum); }
  static float widen(float x) { return x; }
  // Two vectors of weights as a left operand.
  static void store_weights(float* to, Vec first, Vec second) {
    Simd::store(to, first);
    Simd::store(to + kWidth, second);
  }

  template <int R, int NV, Join kJoin>
  struct Tile {
    static void run(const float* left, ptrdiff_t row_stride, ptrdiff_t depth_stride, const float* b, int depth,
                    float* c, ptrdiff_t ldc, const float* factor) {
      float_tile<R, NV, kJoin>(left, row_stride, depth_stride, b, depth, c, ldc, factor);
    }
  };

  // c [rows <= kRows, columns <= kPanel] = a b, columns rounded up to whole vectors.
  static void multiply(int rows, int columns, Left<float> a, const float* panel, int depth, float* c, ptrdiff_t ldc) {
    with_tile<Tile, Join::write>(rows, (columns + kWidth - 1) / kWidth, a.data, a.row_stride, a.depth_stride, panel,
                                 depth, c, ldc, static_cast<const float*>(nullptr));
  }
  // c = 0 + a b
  static void start_sum(int rows, int columns, Left<float> a, const float* panel, int depth, float* c, ptrdiff_t ldc) {
    with_tile<Tile, Join::start>(rows, (columns + kWidth - 1) / kWidth, a.data, a.row_stride, a.depth_stride, panel,
                                 depth, c, ldc, static_cast<const float*>(nullptr));
  }
  // c [row] = factor[row] c [row] + (a b) [row]
  static void multiply_add(int rows, int columns, Left<float> a, const float* panel, int depth, float* c, ptrdiff_t ldc,
                           const float* factor) {
    with_tile<Tile, Join::add>(rows, (columns + kWidth - 1) / kWidth, a.data, a.row_stride, a.depth_stride, panel,
                               depth, c, ldc, factor);
  }
};

}  // namespace
}  // namespace rootdk::cpu
