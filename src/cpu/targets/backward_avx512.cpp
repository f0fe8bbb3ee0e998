// The backward pass of the avx512 target: see src/cpu/README.md.
#include "cpu/simd/avx512.h"
// The vector comes first.
#include "cpu/kernel/backward_functions.h"

namespace rootdk::cpu {

const BackwardTable& backward_avx512_kernels() {
  static constexpr BackwardTable kTable = BackwardFunctions<FloatGemm, BackwardFloatPacking>::table();
  return kTable;
}

}  // namespace rootdk::cpu
