// The backward pass of the avx512bf16 target: see src/cpu/README.md.
#include "cpu/simd/avx512.h"
// The vector comes first.
#include "cpu/simd/pairs_avx512.h"
// The products on top of it.
#include "cpu/kernel/backward_bf16.h"
#include "cpu/kernel/backward_functions.h"

namespace rootdk::cpu {

const BackwardTable& backward_avx512bf16_kernels() {
  static constexpr BackwardTable kTable = BackwardFunctions<BackwardBf16Gemm, BackwardBf16Packing<Bf16Gemm>>::table();
  return kTable;
}

}  // namespace rootdk::cpu
