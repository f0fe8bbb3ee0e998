// Products with stored weights on the wasm target: see src/cpu/README.md.
#include "cpu/simd/wasm.h"
// The vector comes first.
#include "cpu/kernel/linear.h"

namespace rootdk::cpu {

const LinearTable& wasm_linear() {
  static constexpr LinearTable kTable = linear_functions<PlainIntegers>();
  return kTable;
}

}  // namespace rootdk::cpu
