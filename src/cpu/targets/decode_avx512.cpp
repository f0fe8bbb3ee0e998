// Decoding on the avx512 target: see src/cpu/README.md.
#include "cpu/simd/avx512.h"
// The vector comes first.
#include "cpu/kernel/decode_functions.h"
// The products on top of it.
#include "cpu/kernel/decode_avx512.h"

namespace rootdk::cpu {

const DecodeTable& avx512_decode() {
  static constexpr DecodeTable kTable =
      DecodeFunctions<WidenedAvx512<Stored<ElementKind::f32>, InOrder>, WidenedAvx512<Stored<ElementKind::bf16>>,
                      WidenedAvx512<Stored<ElementKind::f16>>, WidenedAvx512<StoredInt8Avx512>,
                      WidenedAvx512<StoredE4m3Avx512>>::table();
  return kTable;
}

}  // namespace rootdk::cpu
