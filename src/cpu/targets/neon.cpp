// The neon target: see src/cpu/README.md.
#include "cpu/simd/neon.h"
// The vector comes first.
#include "cpu/kernel/pack_f32.h"
#include "cpu/kernel/table.h"

namespace rootdk::cpu {

const KernelTable& neon_kernels() {
  static constexpr KernelTable kTable = Kernels<FloatGemm, FloatPacking>::table("neon");
  return kTable;
}

}  // namespace rootdk::cpu
