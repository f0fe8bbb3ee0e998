// The backward pass of the neon target: see src/cpu/README.md.
#include "cpu/simd/neon.h"
// The vector comes first.
#include "cpu/kernel/backward_functions.h"

namespace rootdk::cpu {

const BackwardTable& backward_neon_kernels() {
  static constexpr BackwardTable kTable = BackwardFunctions<FloatGemm, BackwardFloatPacking>::table();
  return kTable;
}

}  // namespace rootdk::cpu
