// The avx512 target: see src/cpu/README.md.
#include "cpu/simd/avx512.h"
// The vector comes first.
#include "cpu/kernel/pack_f32.h"
#include "cpu/kernel/table.h"

namespace rootdk::cpu {

const KernelTable& avx512_kernels() {
  static constexpr KernelTable kTable = Kernels<FloatGemm, FloatPacking>::table("avx512");
  return kTable;
}

}  // namespace rootdk::cpu
