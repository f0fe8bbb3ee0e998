// Stands in for targets/linear_amx.cpp with tile registers in memory; compiled for avx512bf16.
#include "cpu/simd/avx512.h"
// The vector comes first.
#include "cpu/simd/pairs_avx512.h"

namespace rootdk::cpu {
namespace {

struct TileShapes {
  int left_rows[2], left_bytes;
  int right_rows, right_bytes;
};

struct TileRegisters {
  TileShapes shapes;
  uint32_t sum[2][2][16][16];
  char left[2][16][64], right[2][16][64];
  bool configured;
};
thread_local TileRegisters registers;

struct LinearTiles {
  static void configure(const TileShapes& shapes) {
    // What lay in a tile is lost: numbers that a kernel must not use.
    __builtin_memset(&registers, 0xff, sizeof registers);
    registers.shapes = shapes;
    registers.configured = true;
  }
  static void release() { registers.configured = false; }
  static void memory_is_current(const void* = nullptr) {}

  static void check(bool usable) {
    if (!registers.configured || !usable) __builtin_trap();
  }
  static void zero(int i, int j) {
    check(registers.shapes.left_rows[i] > 0);
    __builtin_memset(registers.sum[i][j], 0, sizeof registers.sum[i][j]);
  }
  static void zero_00() { zero(0, 0); }
  static void zero_01() { zero(0, 1); }
  static void zero_10() { zero(1, 0); }
  static void zero_11() { zero(1, 1); }
  static void load(char (&tile)[16][64], int rows, int bytes, const void* p, ptrdiff_t stride) {
    check(rows > 0);
    __builtin_memset(tile, 0, sizeof tile);
    for (int r = 0; r < rows; ++r) {
      __builtin_memcpy(tile[r], static_cast<const char*>(p) + r * stride, static_cast<size_t>(bytes));
    }
  }
  static void load_left(int i, const void* p, ptrdiff_t stride) {
    load(registers.left[i], registers.shapes.left_rows[i], registers.shapes.left_bytes, p, stride);
  }
  static void load_right(int j, const void* p, ptrdiff_t stride) {
    load(registers.right[j], registers.shapes.right_rows, registers.shapes.right_bytes, p, stride);
  }
  static void load_left_0(const void* p, ptrdiff_t stride) { load_left(0, p, stride); }
  static void load_left_1(const void* p, ptrdiff_t stride) { load_left(1, p, stride); }
  static void load_right_0(const void* p, ptrdiff_t stride) { load_right(0, p, stride); }
  static void load_right_1(const void* p, ptrdiff_t stride) { load_right(1, p, stride); }

  static float widen(const char* p) {
    uint16_t half;
    __builtin_memcpy(&half, p, sizeof half);
    return __builtin_bit_cast(float, static_cast<uint32_t>(half) << 16);
  }
  // As Intel's manual has it: first and second numbers of pairs are summed apart, from zero.
  static void pairs(int i, int j) {
    check(registers.shapes.left_bytes == 4 * registers.shapes.right_rows);
    for (int m = 0; m < registers.shapes.left_rows[i]; ++m) {
      for (int n = 0; n < registers.shapes.right_bytes / 4; ++n) {
        float sums[2] = {0, 0};
        for (int k = 0; k < registers.shapes.right_rows; ++k) {
          for (int h = 0; h < 2; ++h) {
            sums[h] = __builtin_fmaf(widen(&registers.left[i][m][4 * k + 2 * h]),
                                     widen(&registers.right[j][k][4 * n + 2 * h]), sums[h]);
          }
        }
        uint32_t& sum = registers.sum[i][j][m][n];
        sum = __builtin_bit_cast(uint32_t, __builtin_bit_cast(float, sum) + (sums[0] + sums[1]));
      }
    }
  }
  static void bytes(int i, int j) {
    check(registers.shapes.left_bytes == 4 * registers.shapes.right_rows);
    for (int m = 0; m < registers.shapes.left_rows[i]; ++m) {
      for (int n = 0; n < registers.shapes.right_bytes / 4; ++n) {
        for (int k = 0; k < registers.shapes.left_bytes; ++k) {
          const auto a = static_cast<signed char>(registers.left[i][m][k]);
          const auto b = static_cast<signed char>(registers.right[j][k / 4][4 * n + k % 4]);
          registers.sum[i][j][m][n] += static_cast<uint32_t>(a * b);
        }
      }
    }
  }
  static void pairs_00() { pairs(0, 0); }
  static void pairs_01() { pairs(0, 1); }
  static void pairs_10() { pairs(1, 0); }
  static void pairs_11() { pairs(1, 1); }
  static void bytes_00() { bytes(0, 0); }
  static void bytes_11() { bytes(1, 1); }

  static void store(int i, int j, void* p, ptrdiff_t stride) {
    check(registers.shapes.left_rows[i] > 0);
    for (int m = 0; m < registers.shapes.left_rows[i]; ++m) {
      __builtin_memcpy(static_cast<char*>(p) + m * stride, registers.sum[i][j][m],
                       static_cast<size_t>(registers.shapes.right_bytes));
    }
  }
  static void store_00(void* p, ptrdiff_t stride) { store(0, 0, p, stride); }
  static void store_01(void* p, ptrdiff_t stride) { store(0, 1, p, stride); }
  static void store_10(void* p, ptrdiff_t stride) { store(1, 0, p, stride); }
  static void store_11(void* p, ptrdiff_t stride) { store(1, 1, p, stride); }
};

}  // namespace
}  // namespace rootdk::cpu

#include "cpu/kernel/linear_amx.h"
#include "cpu/linear_amx_emulated.h"

namespace rootdk::cpu {

const LinearTable& emulated_amx_linear() {
  static constexpr LinearTable kTable = tiled_functions();
  return kTable;
}

}  // namespace rootdk::cpu
