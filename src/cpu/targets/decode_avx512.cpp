// Decoding on the avx512 target: see src/cpu/README.md.
#include "cpu/simd/avx512.h"
// The vector comes first.
#include "cpu/kernel/decode_functions.h"
#include "cpu/kernel/decode_widened.h"
// The products on top of it.
#include "cpu/kernel/decode_two_keys.h"

namespace rootdk::cpu {

const DecodeTable& avx512_decode() {
  static constexpr DecodeTable kTable =
      DecodeFunctions<WidenedAvx512<ElementKind::f32>, WidenedAvx512<ElementKind::bf16>,
                      WidenedAvx512<ElementKind::f16>, WidenedProduct<StoredInt8, FourKeyScores<StoredInt8>>>::table();
  return kTable;
}

}  // namespace rootdk::cpu
