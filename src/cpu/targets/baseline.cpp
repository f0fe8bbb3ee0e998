// The baseline target: see src/cpu/README.md.
#include "cpu/simd/sse2.h"
// The vector comes first.
#include "cpu/kernel/pack_f32.h"
#include "cpu/kernel/table.h"

namespace rootdk::cpu {

const KernelTable& baseline_kernels() {
  static constexpr KernelTable kTable = Kernels<FloatGemm, FloatPacking>::table("baseline");
  return kTable;
}

}  // namespace rootdk::cpu
