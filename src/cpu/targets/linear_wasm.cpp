// Products with stored weights on the wasm target: see src/cpu/README.md.
#include "cpu/simd/wasm.h"
// The vector comes first.
#include "cpu/kernel/linear.h"
#include "cpu/kernel/linear_pairs.h"

namespace rootdk::cpu {
namespace {

struct WasmWords {
  using Int = v128_t;
  static Int load(const char* p) { return wasm_v128_load(p); }
  static void store(char* p, Int x) { wasm_v128_store(p, x); }
  static Int set1(int32_t x) { return wasm_i32x4_splat(x); }
  static Int set1_16(int16_t x) { return wasm_i16x8_splat(x); }
  static Int add(Int a, Int b) { return wasm_i32x4_add(a, b); }
  static Int bit_and(Int a, Int b) { return wasm_v128_and(a, b); }
  template <int kBits>
  static Int left(Int x) {
    return wasm_i16x8_shl(x, kBits);
  }
  template <int kBits>
  static Int right(Int x) {
    return wasm_u16x8_shr(x, kBits);
  }
  template <int kBits>
  static Int signed_right(Int x) {
    return wasm_i16x8_shr(x, kBits);
  }
  static Int multiply_pairs(Int a, Int b) { return wasm_i32x4_dot_i16x8(a, b); }
  static Vec to_float(Int x) { return wasm_f32x4_convert_i32x4(x); }
};

}  // namespace

const LinearTable& wasm_linear() {
  static constexpr LinearTable kTable = linear_functions<PairDots<WasmWords, 3>>();
  return kTable;
}

}  // namespace rootdk::cpu
