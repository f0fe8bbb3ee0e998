// Products with stored weights on 64-bit Arm with products of bf16 and of bytes: see src/cpu/README.md.
#include "cpu/simd/neon.h"
// The vector comes first.
#include "cpu/simd/pairs_neon.h"
// The products on top of it.
#include "cpu/kernel/linear_bf16.h"
#include "cpu/kernel/linear_neondot.h"

namespace rootdk::cpu {

const LinearTable& neonbf16_linear() {
  static constexpr LinearTable kTable = [] {
    LinearTable table = linear_functions<NeonDots<DotProducts>>();
    table.narrow = narrow_block;
    return table;
  }();
  return kTable;
}

}  // namespace rootdk::cpu
