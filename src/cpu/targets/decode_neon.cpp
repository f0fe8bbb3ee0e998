// Decoding on the neon target: see src/cpu/README.md.
#include "cpu/simd/neon.h"
// The vector comes first.
#include "cpu/simd/block_sums.h"
// Then the sums over its lanes.
#include "cpu/kernel/decode_functions.h"
#include "cpu/kernel/decode_widened.h"

namespace rootdk::cpu {

const DecodeTable& neon_decode() {
  static constexpr DecodeTable kTable =
      DecodeFunctions<WidenedProduct<Stored<ElementKind::f32>>, WidenedProduct<Stored<ElementKind::bf16>>,
                      WidenedProduct<Stored<ElementKind::f16>>, WidenedProduct<StoredInt8>>::table();
  return kTable;
}

}  // namespace rootdk::cpu
