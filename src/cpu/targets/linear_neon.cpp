// Products with stored weights on the neon target: see src/cpu/README.md.
#include "cpu/simd/neon.h"
// The vector comes first.
#include "cpu/kernel/linear.h"

namespace rootdk::cpu {
namespace {

struct NeonDots {
  using Int = int32x4_t;
  using Weights = int8x16_t;  // 4 rows, 4 columns each
  using Quad = int8x16_t;
  static constexpr int kByteZero = 0, kHalfZero = 8;
  static constexpr bool kPairs = false;
  static constexpr int kTileRows = 4;

  static Weights bytes(const char* p) { return vld1q_s8(reinterpret_cast<const int8_t*>(p)); }
  static void halves(const char* p, Weights& low, Weights& high) {
    const uint8x16_t both = vld1q_u8(reinterpret_cast<const uint8_t*>(p));
    low = vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15)));
    high = vreinterpretq_s8_u8(vshrq_n_u8(both, 4));
  }
  static Weights unpacked(const char* p) { return bytes(p); }
  static void unpack(const char* p, char* low, char* high) {
    Weights l, h;
    halves(p, l, h);
    vst1q_s8(reinterpret_cast<int8_t*>(low), l);
    vst1q_s8(reinterpret_cast<int8_t*>(high), h);
  }
  static Quad quad(const IntegerRows& x, int64_t at) {
    int32_t four;
    __builtin_memcpy(&four, x.bytes + at, sizeof four);
    return vreinterpretq_s8_s32(vdupq_n_s32(four));
  }
  static Int dot_bytes(Int sums, Weights w, Quad x) {
    const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(x)));
    const int32x4_t high = vpaddlq_s16(vmull_high_s8(w, x));
    return vaddq_s32(sums, vpaddq_s32(low, high));
  }
  static Int dot_halves(Int sums, Weights w, Quad x) { return dot_bytes(sums, w, x); }
  static Int set1(int32_t x) { return vdupq_n_s32(x); }
  static Int add(Int a, Int b) { return vaddq_s32(a, b); }
  static Vec to_float(Int x) { return vcvtq_f32_s32(x); }
};

}  // namespace

const LinearTable& neon_linear() {
  static constexpr LinearTable kTable = linear_functions<NeonDots>();
  return kTable;
}

}  // namespace rootdk::cpu
