#pragma once

// Products of bf16 on AMX tiles, accumulated in f32. Needs Tiles (simd/amx_tiles.h). Included once per target: internal
// linkage.

#include "cpu/kernel/gemm_bf16.h"

namespace rootdk::cpu {
namespace {

// Products in bf16 by 16 x 16 x 32 tiles, two by two. Panels are as those of Bf16Gemm, two tiles wide. Left operands
// are read in whole tiles: memory holds rows rounded up to 16, what lies in the last ones does not matter, and
// depth_stride is 1.
struct AmxGemm {
  using Element = uint16_t;
  using Unit = uint32_t;
  static constexpr int kTile = 16;  // rows and columns of a tile
  static constexpr int kDepthStep = 32;
  static constexpr int kRows = 32;
  static constexpr int kPanel = 2 * kTile;
  static constexpr int kUnit = 2;
  static constexpr int kTileKeys = 512;

  // The tile configuration belongs to the thread.
  struct Thread {
    Thread() { Tiles::configure(); }
    ~Thread() { Tiles::release(); }
  };

  static int64_t peak(int64_t rounds, float* sum) {
    alignas(64) static const uint16_t zeros[kTile * kDepthStep] = {};
    alignas(64) float result[kTile * kTile];
    Tiles::zero();
    Tiles::load_left_0(zeros, 64);
    Tiles::load_left_1(zeros, 64);
    Tiles::load_right_0(zeros, 64);
    Tiles::load_right_1(zeros, 64);
    for (int64_t round = 0; round < rounds; ++round) multiply_tiles(true);
    Tiles::store_00(result, 64);
    *sum = result[0];
    return rounds * 4 * kTile * kTile * kDepthStep * 2;
  }
  static float widen(uint16_t x) { return widen_bf16(x); }
  static void store_weights(uint16_t* to, Vec first, Vec second) { store_bf16_pair(to, first, second); }

  static void multiply(int rows, int columns, Left<uint32_t> a, const uint16_t* panel, int depth, float* c,
                       ptrdiff_t ldc) {
    for (int j = 0; j < columns; j += 2 * kTile) {
      const bool two_columns = columns > j + kTile;
      for (int i = 0; i < rows; i += 2 * kTile) {  // the right tiles stay in L1 from one pair of left tiles to the next
        const bool two_rows = rows > i + kTile;
        run(two_rows, two_columns, rows_from(a, i), panel + 2 * j, depth);
        store(two_rows, two_columns, c + i * ldc + j, ldc);
      }
    }
  }

  static void multiply_add(int rows, int columns, Left<uint32_t> a, const uint16_t* panel, int depth, float* c,
                           ptrdiff_t ldc, const float* factor) {
    alignas(64) float product[2 * kTile * 2 * kTile];
    for (int j = 0; j < columns; j += 2 * kTile) {
      const bool two_columns = columns > j + kTile;
      for (int i = 0; i < rows; i += 2 * kTile) {
        const bool two_rows = rows > i + kTile;
        run(two_rows, two_columns, rows_from(a, i), panel + 2 * j, depth);
        store(two_rows, two_columns, product, 2 * kTile);
        add_product(smaller(2 * kTile, rows - i), two_columns, product, c + i * ldc + j, ldc, factor + i);
      }
    }
  }

 private:
  static void multiply_tiles(bool two_rows) {
    Tiles::multiply_00();
    Tiles::multiply_01();
    if (two_rows) {
      Tiles::multiply_10();
      Tiles::multiply_11();
    }
  }

  static Left<uint32_t> rows_from(Left<uint32_t> a, int row) { return {a.data + row * a.row_stride, a.row_stride}; }

  // c [rows] = factor c + product, of one or two vectors.
  static void add_product(int rows, bool two_columns, const float* product, float* c, ptrdiff_t ldc,
                          const float* factor) {
    for (int i = 0; i < rows; ++i, c += ldc, product += 2 * kTile) {
      const Vec f = Simd::set1(factor[i]);
      Simd::store(c, Simd::fma(f, Simd::load(c), Simd::load(product)));
      if (!two_columns) continue;
      Simd::store(c + kWidth, Simd::fma(f, Simd::load(c + kWidth), Simd::load(product + kWidth)));
    }
  }

  // The intrinsics do not tell the compiler that they read memory: what was stored must be there.
  static void memory_is_current() { __asm__ volatile("" ::: "memory"); }

  static void run(bool two_rows, bool two_columns, Left<uint32_t> a, const uint16_t* panel, int depth) {
    constexpr ptrdiff_t kPanelStride = 2 * kPanel * sizeof(uint16_t);
    const ptrdiff_t left_stride = a.row_stride * static_cast<ptrdiff_t>(sizeof(uint32_t));
    memory_is_current();
    Tiles::zero();
    for (int k = 0; k < depth; k += kDepthStep) {
      const uint32_t* left = a.data + k / 2;
      const uint16_t* right = panel + static_cast<ptrdiff_t>(k) * kPanel;
      Tiles::load_left_0(left, left_stride);
      Tiles::load_right_0(right, kPanelStride);
      Tiles::multiply_00();
      if (two_columns) {
        Tiles::load_right_1(right + 2 * kTile, kPanelStride);
        Tiles::multiply_01();
      }
      if (two_rows) {
        Tiles::load_left_1(left + kTile * a.row_stride, left_stride);
        Tiles::multiply_10();
        if (two_columns) Tiles::multiply_11();
      }
    }
  }

  static void store(bool two_rows, bool two_columns, float* c, ptrdiff_t ldc) {
    const ptrdiff_t stride = ldc * static_cast<ptrdiff_t>(sizeof(float));
    Tiles::store_00(c, stride);
    if (two_columns) Tiles::store_01(c + kTile, stride);
    if (two_rows) {
      Tiles::store_10(c + kTile * ldc, stride);
      if (two_columns) Tiles::store_11(c + kTile * ldc + kTile, stride);
    }
    memory_is_current();
  }
};

}  // namespace
}  // namespace rootdk::cpu
