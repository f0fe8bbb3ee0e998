// The backward pass of the baseline target: see src/cpu/README.md.
#include "cpu/simd/sse2.h"
// The vector comes first.
#include "cpu/kernel/backward_functions.h"

namespace rootdk::cpu {

const BackwardTable& backward_baseline_kernels() {
  static constexpr BackwardTable kTable = BackwardFunctions<FloatGemm, BackwardFloatPacking>::table();
  return kTable;
}

}  // namespace rootdk::cpu
