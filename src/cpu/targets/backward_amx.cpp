// The backward pass of the amx target: see src/cpu/README.md.
#include "cpu/simd/avx512.h"
// The vector comes first.
#include "cpu/simd/amx_tiles.h"
#include "cpu/simd/pairs_avx512.h"

#include "cpu/kernel/backward_amx.h"
#include "cpu/kernel/backward_functions.h"

namespace rootdk::cpu {

const BackwardTable& backward_amx_kernels() {
  static constexpr BackwardTable kTable = BackwardFunctions<BackwardAmxGemm, BackwardAmxPacking, AmxBackward>::table();
  return kTable;
}

}  // namespace rootdk::cpu
