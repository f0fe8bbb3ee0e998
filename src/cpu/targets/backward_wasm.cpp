// The backward pass of the wasm target: see src/cpu/README.md.
#include "cpu/simd/wasm.h"
// The vector comes first.
#include "cpu/kernel/backward_functions.h"

namespace rootdk::cpu {

const BackwardTable& backward_wasm_kernels() {
  static constexpr BackwardTable kTable = BackwardFunctions<FloatGemm, BackwardFloatPacking>::table();
  return kTable;
}

}  // namespace rootdk::cpu
