// The neonbf16 target: see src/cpu/README.md.
#include "cpu/simd/neon.h"
// The vector comes first.
#include "cpu/simd/pairs_neon.h"
// The products on top of it.
#include "cpu/kernel/pack_bf16.h"
#include "cpu/kernel/table.h"

namespace rootdk::cpu {

const KernelTable& neonbf16_kernels() {
  static constexpr KernelTable kTable = Kernels<Bf16Gemm, Bf16Packing<Bf16Gemm>>::table("neonbf16");
  return kTable;
}

}  // namespace rootdk::cpu
