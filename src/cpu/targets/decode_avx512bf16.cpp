// Decoding over bf16 with products of bf16 (avx512bf16): see src/cpu/README.md.
#include "cpu/simd/avx512.h"
// The vector comes first.
#include "cpu/simd/pairs_avx512.h"
// The product on top of it.
#include "cpu/kernel/decode_eight.h"
#include "cpu/kernel/decode_functions.h"

namespace rootdk::cpu {

const DecodeTable& avx512bf16_decode() {
  static constexpr DecodeTable kTable = table_of_kind<CacheKind::bf16, Bf16ProductOfEight>();
  return kTable;
}

}  // namespace rootdk::cpu
