// The avx2 target: see src/cpu/README.md.
#include "cpu/simd/avx2.h"
// The vector comes first.
#include "cpu/kernel/pack_f32.h"
#include "cpu/kernel/table.h"

namespace rootdk::cpu {

const KernelTable& avx2_kernels() {
  static constexpr KernelTable kTable = Kernels<FloatGemm, FloatPacking>::table("avx2");
  return kTable;
}

}  // namespace rootdk::cpu
