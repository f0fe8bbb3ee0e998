// The wasm target: see src/cpu/README.md.
#include "cpu/simd/wasm.h"
// The vector comes first.
#include "cpu/kernel/pack_f32.h"
#include "cpu/kernel/table.h"

namespace rootdk::cpu {

const KernelTable& wasm_kernels() {
  static constexpr KernelTable kTable = Kernels<FloatGemm, FloatPacking>::table("wasm");
  return kTable;
}

}  // namespace rootdk::cpu
