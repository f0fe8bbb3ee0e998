// Products with stored weights on the neon target: see src/cpu/README.md.
#include "cpu/simd/neon.h"
// The vector comes first.
#include "cpu/kernel/linear.h"

namespace rootdk::cpu {

const LinearTable& neon_linear() {
  static constexpr LinearTable kTable = linear_functions<PlainIntegers>();
  return kTable;
}

}  // namespace rootdk::cpu
