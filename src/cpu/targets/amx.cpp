// The amx target: see src/cpu/README.md.
#include "cpu/simd/avx512.h"
// The vector comes first.
#include "cpu/simd/amx_tiles.h"
#include "cpu/simd/pairs_avx512.h"

#include "cpu/kernel/forward_amx.h"
#include "cpu/kernel/pack_bf16.h"
#include "cpu/kernel/table.h"

namespace rootdk::cpu {

const KernelTable& amx_kernels() {
  static constexpr KernelTable kTable = Kernels<AmxGemm, Bf16Packing<AmxGemm>, AmxForward>::table("amx");
  return kTable;
}

}  // namespace rootdk::cpu
