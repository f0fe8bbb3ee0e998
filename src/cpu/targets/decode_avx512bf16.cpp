// Decoding on the avx512bf16 target (avx512bf16 and avx512vnni): see src/cpu/README.md.
#include "cpu/simd/avx512.h"
// The vector comes first.
#include "cpu/kernel/decode_functions.h"
// The products on top of it.
#include "cpu/kernel/decode_bytes.h"
#include "cpu/kernel/decode_paired.h"

namespace rootdk::cpu {

const DecodeTable& avx512bf16_decode() {
  static constexpr DecodeTable kTable =
      DecodeFunctions<WidenedAvx512<Stored<ElementKind::f32>, InOrder>, Bf16Product,
                      WidenedAvx512<Stored<ElementKind::f16>>, ByteProduct, WidenedAvx512<StoredE4m3Avx512>>::table();
  return kTable;
}

}  // namespace rootdk::cpu
