// The avx512bf16 target: see src/cpu/README.md.
#include "cpu/simd/avx512.h"
// The vector comes first.
#include "cpu/simd/pairs_avx512.h"
// The products on top of it.
#include "cpu/kernel/pack_bf16.h"
#include "cpu/kernel/table.h"

namespace rootdk::cpu {

const KernelTable& avx512bf16_kernels() {
  static constexpr KernelTable kTable = Kernels<Bf16Gemm, Bf16Packing<Bf16Gemm>>::table("avx512bf16");
  return kTable;
}

}  // namespace rootdk::cpu
