// Products with stored weights on the amx target: see src/cpu/README.md.
#include "cpu/simd/avx512.h"
// The vector comes first.
#include "cpu/simd/amx_linear_tiles.h"
#include "cpu/simd/pairs_avx512.h"
// The products on top of it.
#include "cpu/kernel/linear_amx.h"

namespace rootdk::cpu {

const LinearTable& amx_linear() {
  static constexpr LinearTable kTable = tiled_functions();
  return kTable;
}

}  // namespace rootdk::cpu
