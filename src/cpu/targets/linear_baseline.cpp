// Products with stored weights on the baseline target: see src/cpu/README.md.
#include "cpu/simd/sse2.h"
// The vector comes first.
#include "cpu/kernel/linear.h"

namespace rootdk::cpu {

const LinearTable& baseline_linear() {
  static constexpr LinearTable kTable = linear_functions<PlainIntegers>();
  return kTable;
}

}  // namespace rootdk::cpu
