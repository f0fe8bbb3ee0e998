#pragma once

// The vector of the wasm target (WebAssembly with SIMD128): 4 floats, no fused multiply-add. Results have the bits of
// the baseline target, whose operations these are. src/cpu/README.md lists what every target provides.

#include <stdint.h>
#include <wasm_simd128.h>

#include "cpu/simd/scalar_partial.h"

namespace rootdk::cpu {
namespace {

struct Wasm {
  using Vec = v128_t;
  using Int = v128_t;
  static constexpr int kWidth = 4;
  static constexpr int kPanelVectors = 2;  // 6 x 2 accumulators: engines on x86-64 have 16 registers for them
  static constexpr int kRows = 6;
  static constexpr bool kFused = false;  // fma rounds once
  static constexpr bool kScales = false;
  static constexpr int kReduceDistances[] = {2, 1};  // lanes that reduce_add adds, one after another

  static Vec load(const float* p) { return wasm_v128_load(p); }
  static void store(float* p, Vec x) { wasm_v128_store(p, x); }
  static Vec set1(float x) { return wasm_f32x4_splat(x); }
  static Vec zero() { return wasm_f32x4_const_splat(0); }
  static Vec iota() { return wasm_f32x4_const(0, 1, 2, 3); }

  static Vec add(Vec a, Vec b) { return wasm_f32x4_add(a, b); }
  static Vec sub(Vec a, Vec b) { return wasm_f32x4_sub(a, b); }
  static Vec mul(Vec a, Vec b) { return wasm_f32x4_mul(a, b); }
  static Vec div(Vec a, Vec b) { return wasm_f32x4_div(a, b); }
  static Vec fma(Vec a, Vec b, Vec c) { return wasm_f32x4_add(wasm_f32x4_mul(a, b), c); }
  static Vec max(Vec a, Vec b) { return wasm_f32x4_pmax(b, a); }  // b < a ? a : b, one instruction on x86-64
  static Vec abs(Vec x) { return wasm_f32x4_abs(x); }
  static Vec copy_sign(Vec magnitude, Vec sign) { return wasm_v128_bitselect(sign, magnitude, set1(-0.0f)); }
  static Vec select_less(Vec a, Vec b, Vec when_less, Vec otherwise) {
    return wasm_v128_bitselect(when_less, otherwise, wasm_f32x4_lt(a, b));
  }
  static Vec add_exponent(Vec x, Vec biased) { return opaque(wasm_i32x4_add(x, wasm_i32x4_shl(biased, 23))); }
  static float reduce_add(Vec x) {
    const Vec half = wasm_f32x4_add(x, wasm_i32x4_shuffle(x, x, 2, 3, 2, 3));
    return wasm_f32x4_extract_lane(half, 0) + wasm_f32x4_extract_lane(half, 1);
  }
  static float reduce_max(Vec x) {
    const Vec half = max(x, wasm_i32x4_shuffle(x, x, 2, 3, 2, 3));
    return wasm_f32x4_extract_lane(max(half, wasm_i32x4_shuffle(half, half, 1, 1, 1, 1)), 0);
  }

  static Vec load_bf16(const uint16_t* p) { return opaque(wasm_i32x4_shl(wasm_u32x4_load16x4(p), 16)); }
  static Vec load_f16(const uint16_t* p) {
    const v128_t half = wasm_u32x4_load16x4(p);
    const v128_t sign = wasm_i32x4_shl(wasm_v128_and(half, wasm_i32x4_const_splat(0x8000)), 16);
    const v128_t magnitude = wasm_i32x4_shl(wasm_v128_and(half, wasm_i32x4_const_splat(0x7fff)), 13);
    // The multiplication moves the exponent and normalises subnormals; infinity and NaN keep the largest exponent.
    const Vec scaled = wasm_f32x4_mul(magnitude, set1(0x1p112f));
    const v128_t special = wasm_i32x4_gt(magnitude, wasm_i32x4_const_splat((0x7c00 << 13) - 1));
    const v128_t exponent = wasm_v128_and(special, wasm_i32x4_const_splat(0x7f800000));
    return opaque(wasm_v128_or(wasm_v128_or(scaled, exponent), sign));
  }
  static void store_bf16(uint16_t* p, Vec x) {
    const v128_t odd = wasm_v128_and(wasm_u32x4_shr(x, 16), wasm_i32x4_const_splat(1));
    const v128_t rounded = wasm_i32x4_add(x, wasm_i32x4_add(odd, wasm_i32x4_const_splat(0x7fff)));
    const v128_t quiet = wasm_v128_or(x, wasm_i32x4_const_splat(0x400000));
    store_high_halves(p, wasm_v128_bitselect(rounded, quiet, wasm_f32x4_eq(x, x)));
  }
  static void store_f16(uint16_t* p, Vec x) {
    const v128_t sign = wasm_v128_and(x, set1(-0.0f));
    const v128_t magnitude = wasm_v128_xor(x, sign);
    const v128_t odd = wasm_v128_and(wasm_u32x4_shr(magnitude, 13), wasm_i32x4_const_splat(1));
    const v128_t normal = wasm_u32x4_shr(wasm_i32x4_add(wasm_i32x4_sub(magnitude, wasm_i32x4_const_splat(0x38000000)),
                                                        wasm_i32x4_add(odd, wasm_i32x4_const_splat(0xfff))),
                                         13);
    // Adding 0.5 aligns the mantissa of a subnormal result, so that the float addition does the rounding.
    const Vec shifted = wasm_f32x4_add(magnitude, set1(0.5f));
    const v128_t subnormal = wasm_i32x4_sub(shifted, wasm_i32x4_const_splat(0x3f000000));
    v128_t half = wasm_v128_bitselect(subnormal, normal, wasm_i32x4_lt(magnitude, wasm_i32x4_const_splat(0x38800000)));
    half = wasm_v128_bitselect(wasm_i32x4_const_splat(0x7c00), half,
                               wasm_i32x4_gt(magnitude, wasm_i32x4_const_splat(0x477fefff)));
    half = wasm_v128_bitselect(wasm_i32x4_const_splat(0x7e00), half,
                               wasm_i32x4_gt(magnitude, wasm_i32x4_const_splat(0x7f800000)));
    store_high_halves(p, wasm_v128_or(wasm_i32x4_shl(half, 16), sign));
  }

  // Lanes of p where the 16-bit number is at least `threshold`; 0 elsewhere.
  static Vec keep_at_least(Vec p, const uint16_t* lanes, uint32_t threshold) {
    return wasm_v128_and(p, wasm_u32x4_ge(wasm_u32x4_load16x4(lanes), set1_int(threshold)));
  }

  static Int set1_int(uint32_t x) { return wasm_i32x4_splat(static_cast<int32_t>(x)); }
  static Int iota_int() { return wasm_i32x4_const(0, 1, 2, 3); }
  static Int add_int(Int a, Int b) { return wasm_i32x4_add(a, b); }
  static Int xor_int(Int a, Int b) { return wasm_v128_xor(a, b); }
  static void store_int(uint32_t* p, Int x) { wasm_v128_store(p, x); }
  // The 64-bit products of each lane with m, as high and low words.
  static void multiply_wide(Int a, uint32_t m, Int& high, Int& low) {
    const v128_t factor = set1_int(m);
    const v128_t first = wasm_u64x2_extmul_low_u32x4(a, factor);
    const v128_t second = wasm_u64x2_extmul_high_u32x4(a, factor);
    low = wasm_i32x4_shuffle(first, second, 0, 2, 4, 6);
    high = wasm_i32x4_shuffle(first, second, 1, 3, 5, 7);
  }

  // rows[i][j] <-> rows[j][i], any 32-bit lanes.
  static void transpose(Vec (&rows)[kWidth]) {
    const v128_t even_low = wasm_i32x4_shuffle(rows[0], rows[2], 0, 4, 1, 5);
    const v128_t even_high = wasm_i32x4_shuffle(rows[0], rows[2], 2, 6, 3, 7);
    const v128_t odd_low = wasm_i32x4_shuffle(rows[1], rows[3], 0, 4, 1, 5);
    const v128_t odd_high = wasm_i32x4_shuffle(rows[1], rows[3], 2, 6, 3, 7);
    rows[0] = wasm_i32x4_shuffle(even_low, odd_low, 0, 4, 1, 5);
    rows[1] = wasm_i32x4_shuffle(even_low, odd_low, 2, 6, 3, 7);
    rows[2] = wasm_i32x4_shuffle(even_high, odd_high, 0, 4, 1, 5);
    rows[3] = wasm_i32x4_shuffle(even_high, odd_high, 2, 6, 3, 7);
  }

 private:
  // Clang 14 never ends where it takes one lane of some integer computations on floats (2^x or f16 of a single number),
  // unless it cannot look inside. Costs no instruction.
  static Vec opaque(Vec x) {
    __asm__("" : "+r"(x));
    return x;
  }
  static void store_high_halves(uint16_t* p, v128_t words) {
    wasm_v128_store64_lane(p, wasm_i16x8_shuffle(words, words, 1, 3, 5, 7, 1, 3, 5, 7), 0);
  }
};

using Simd = WithPartialAccess<Wasm>;

}  // namespace
}  // namespace rootdk::cpu
