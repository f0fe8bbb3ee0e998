#pragma once

// The tile registers of AMX as products with stored weights use them: four accumulators, two left and two right tiles,
// of the shapes that a product asks for. The intrinsics want literal register numbers, hence one function a register.

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

namespace rootdk::cpu {
namespace {

// Rows and bytes of a row. Sum ij has the rows of left tile i and the columns of right tile j.
struct TileShapes {
  int left_rows[2], left_bytes;
  int right_rows, right_bytes;
};

struct LinearTiles {
  // Tiles without rows must not be used. They belong to the thread until release().
  static void configure(const TileShapes& shapes) {
    struct alignas(64) Config {
      uint8_t palette = 1, start_row = 0;
      uint8_t reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } config;
    const auto set = [&](int tile, int rows, int bytes) {
      config.rows[tile] = static_cast<uint8_t>(rows);
      config.row_bytes[tile] = static_cast<uint16_t>(rows == 0 ? 0 : bytes);
    };
    for (int i = 0; i < 2; ++i) {
      set(2 * i, shapes.left_rows[i], shapes.right_bytes);
      set(2 * i + 1, shapes.left_rows[i], shapes.right_bytes);
      set(4 + i, shapes.left_rows[i], shapes.left_bytes);
      set(6 + i, shapes.right_rows, shapes.right_bytes);
    }
    memory_is_current(&config);
    _tile_loadconfig(&config);
  }
  static void release() { _tile_release(); }
  // The intrinsics do not tell the compiler which memory they read and write.
  static void memory_is_current(const void* p = nullptr) { __asm__ volatile("" : : "r"(p) : "memory"); }

  static void zero_00() { _tile_zero(0); }
  static void zero_01() { _tile_zero(1); }
  static void zero_10() { _tile_zero(2); }
  static void zero_11() { _tile_zero(3); }
  // Strides are in bytes.
  static void load_left_0(const void* p, ptrdiff_t stride) { _tile_loadd(4, p, stride); }
  static void load_left_1(const void* p, ptrdiff_t stride) { _tile_loadd(5, p, stride); }
  static void load_right_0(const void* p, ptrdiff_t stride) { _tile_loadd(6, p, stride); }
  static void load_right_1(const void* p, ptrdiff_t stride) { _tile_loadd(7, p, stride); }
  // Pairs of bf16: sum ij += left i x right j.
  static void pairs_00() { _tile_dpbf16ps(0, 4, 6); }
  static void pairs_01() { _tile_dpbf16ps(1, 4, 7); }
  static void pairs_10() { _tile_dpbf16ps(2, 5, 6); }
  static void pairs_11() { _tile_dpbf16ps(3, 5, 7); }
  // Quads of signed bytes.
  static void bytes_00() { _tile_dpbssd(0, 4, 6); }
  static void bytes_11() { _tile_dpbssd(3, 5, 7); }
  static void store_00(void* p, ptrdiff_t stride) { _tile_stored(0, p, stride); }
  static void store_01(void* p, ptrdiff_t stride) { _tile_stored(1, p, stride); }
  static void store_10(void* p, ptrdiff_t stride) { _tile_stored(2, p, stride); }
  static void store_11(void* p, ptrdiff_t stride) { _tile_stored(3, p, stride); }
};

}  // namespace
}  // namespace rootdk::cpu
