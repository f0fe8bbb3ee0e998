// Products with stored weights on the neon target: see src/cpu/README.md.
#include "cpu/simd/neon.h"
// The vector comes first.
#include "cpu/kernel/linear.h"
#include "cpu/kernel/linear_neon.h"

namespace rootdk::cpu {
namespace {

struct WidenedProducts {
  static constexpr int kTileRows = 4;
  static int32x4_t add(int32x4_t sums, int8x16_t w, int8x16_t x) {
    const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(x)));
    const int32x4_t high = vpaddlq_s16(vmull_high_s8(w, x));
    return vaddq_s32(sums, vpaddq_s32(low, high));
  }
};

}  // namespace

const LinearTable& neon_linear() {
  static constexpr LinearTable kTable = linear_functions<NeonDots<WidenedProducts>>();
  return kTable;
}

}  // namespace rootdk::cpu
