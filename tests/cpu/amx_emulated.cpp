// Stands in for targets/amx.cpp and targets/backward_amx.cpp with tile registers in memory; compiled for avx512bf16.
#include "cpu/simd/avx512.h"
// The vector comes first.
#include "cpu/simd/pairs_avx512.h"

namespace rootdk::cpu {
namespace {

struct TileRegisters {
  float sum[4][16][16];
  uint16_t left[2][16][32];
  uint16_t right[2][16][32];  // [pair, column, 2]
  bool configured;
};
thread_local TileRegisters registers;

struct Tiles {
  static void configure() { registers.configured = true; }
  static void release() { registers.configured = false; }
  static void zero() {
    if (!registers.configured) __builtin_trap();
    for (auto& tile : registers.sum) {
      for (auto& row : tile) {
        for (float& x : row) x = 0;
      }
    }
  }
  static void load(uint16_t (&tile)[16][32], const void* p, std::ptrdiff_t stride) {
    for (int i = 0; i < 16; ++i) __builtin_memcpy(tile[i], static_cast<const char*>(p) + i * stride, 64);
  }
  static void load_sum(int sum, const float* p, std::ptrdiff_t stride) {
    for (int i = 0; i < 16; ++i) {
      __builtin_memcpy(registers.sum[sum][i], reinterpret_cast<const char*>(p) + i * stride, 64);
    }
  }
  static void load_00(const float* p, std::ptrdiff_t stride) { load_sum(0, p, stride); }
  static void load_01(const float* p, std::ptrdiff_t stride) { load_sum(1, p, stride); }
  static void load_10(const float* p, std::ptrdiff_t stride) { load_sum(2, p, stride); }
  static void load_11(const float* p, std::ptrdiff_t stride) { load_sum(3, p, stride); }
  static void load_left_0(const void* p, std::ptrdiff_t stride) { load(registers.left[0], p, stride); }
  static void load_left_1(const void* p, std::ptrdiff_t stride) { load(registers.left[1], p, stride); }
  static void load_right_0(const void* p, std::ptrdiff_t stride) { load(registers.right[0], p, stride); }
  static void load_right_1(const void* p, std::ptrdiff_t stride) { load(registers.right[1], p, stride); }

  static float widen(uint16_t x) { return __builtin_bit_cast(float, static_cast<uint32_t>(x) << 16); }
  static void multiply(int sum, int left, int right) {
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 16; ++j) {
        for (int k = 0; k < 32; ++k) {
          registers.sum[sum][i][j] +=
              widen(registers.left[left][i][k]) * widen(registers.right[right][k / 2][2 * j + k % 2]);
        }
      }
    }
  }
  static void multiply_00() { multiply(0, 0, 0); }
  static void multiply_01() { multiply(1, 0, 1); }
  static void multiply_10() { multiply(2, 1, 0); }
  static void multiply_11() { multiply(3, 1, 1); }

  static void store(int sum, float* p, std::ptrdiff_t stride) {
    for (int i = 0; i < 16; ++i) __builtin_memcpy(reinterpret_cast<char*>(p) + i * stride, registers.sum[sum][i], 64);
  }
  static void store_00(float* p, std::ptrdiff_t stride) { store(0, p, stride); }
  static void store_01(float* p, std::ptrdiff_t stride) { store(1, p, stride); }
  static void store_10(float* p, std::ptrdiff_t stride) { store(2, p, stride); }
  static void store_11(float* p, std::ptrdiff_t stride) { store(3, p, stride); }
};

}  // namespace
}  // namespace rootdk::cpu

#include "cpu/amx_emulated.h"
#include "cpu/kernel/backward_amx.h"
#include "cpu/kernel/backward_functions.h"
#include "cpu/kernel/forward_amx.h"
#include "cpu/kernel/pack_bf16.h"
#include "cpu/kernel/table.h"

namespace rootdk::cpu {

const KernelTable& emulated_amx_kernels() {
  static constexpr KernelTable kTable = Kernels<AmxGemm, Bf16Packing<AmxGemm>, AmxForward>::table("amx, emulated");
  return kTable;
}

const BackwardTable& emulated_amx_backward_kernels() {
  static constexpr BackwardTable kTable = BackwardFunctions<BackwardAmxGemm, BackwardAmxPacking, AmxBackward>::table();
  return kTable;
}

}  // namespace rootdk::cpu
