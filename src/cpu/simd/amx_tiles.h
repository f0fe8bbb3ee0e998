#pragma once

// The tile registers of AMX: four accumulators of 16 x 16 floats, two left tiles of 16 rows x 32 bf16, two right tiles
// of 16 pairs x 16 columns x 2. The intrinsics want literal register numbers, hence one function a register.

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

namespace rootdk::cpu {
namespace {

struct Tiles {
  // Every tile has 16 rows of 64 bytes.
  static void configure() {
    struct alignas(64) Config {
      uint8_t palette = 1, start_row = 0;
      uint8_t reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    };
    // Static: the intrinsic tells the compiler of its first bytes only, and the others must be in memory too.
    static constexpr Config config;
    _tile_loadconfig(&config);
  }
  static void release() { _tile_release(); }

  static void zero() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  // Strides are in bytes.
  static void load_00(const float* p, ptrdiff_t stride) { _tile_loadd(0, p, stride); }
  static void load_01(const float* p, ptrdiff_t stride) { _tile_loadd(1, p, stride); }
  static void load_10(const float* p, ptrdiff_t stride) { _tile_loadd(2, p, stride); }
  static void load_11(const float* p, ptrdiff_t stride) { _tile_loadd(3, p, stride); }
  static void load_left_0(const void* p, ptrdiff_t stride) { _tile_loadd(4, p, stride); }
  static void load_left_1(const void* p, ptrdiff_t stride) { _tile_loadd(5, p, stride); }
  static void load_right_0(const void* p, ptrdiff_t stride) { _tile_loadd(6, p, stride); }
  static void load_right_1(const void* p, ptrdiff_t stride) { _tile_loadd(7, p, stride); }
  static void multiply_00() { _tile_dpbf16ps(0, 4, 6); }
  static void multiply_01() { _tile_dpbf16ps(1, 4, 7); }
  static void multiply_10() { _tile_dpbf16ps(2, 5, 6); }
  static void multiply_11() { _tile_dpbf16ps(3, 5, 7); }
  static void store_00(float* p, ptrdiff_t stride) { _tile_stored(0, p, stride); }
  static void store_01(float* p, ptrdiff_t stride) { _tile_stored(1, p, stride); }
  static void store_10(float* p, ptrdiff_t stride) { _tile_stored(2, p, stride); }
  static void store_11(float* p, ptrdiff_t stride) { _tile_stored(3, p, stride); }
};

}  // namespace
}  // namespace rootdk::cpu
