// Products with stored weights on 64-bit Arm with dot products: see src/cpu/README.md.
#include "cpu/simd/neon.h"
// The vector comes first.
#include "cpu/kernel/linear.h"
#include "cpu/kernel/linear_neondot.h"

namespace rootdk::cpu {

const LinearTable& neondot_linear() {
  static constexpr LinearTable kTable = linear_functions<NeonDots<DotProducts>>();
  return kTable;
}

}  // namespace rootdk::cpu
