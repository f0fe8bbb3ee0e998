// Products with stored weights on 64-bit Arm with dot products: see src/cpu/README.md.
#include "cpu/simd/neon.h"
// The vector comes first.
#include "cpu/kernel/linear.h"
#include "cpu/kernel/linear_neon.h"

namespace rootdk::cpu {
namespace {

struct DotProducts {
  static constexpr int kTileRows = 6;
  static int32x4_t add(int32x4_t sums, int8x16_t w, int8x16_t x) { return vdotq_s32(sums, w, x); }
};

}  // namespace

const LinearTable& neondot_linear() {
  static constexpr LinearTable kTable = linear_functions<NeonDots<DotProducts>>();
  return kTable;
}

}  // namespace rootdk::cpu
