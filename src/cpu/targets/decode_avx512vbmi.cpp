// Decoding over e4m3 by tables of bytes and products of bf16 (avx512vbmi and avx512bf16): see src/cpu/README.md.
#include "cpu/simd/avx512.h"
// The vector comes first.
#include "cpu/simd/pairs_avx512.h"
// The product on top of it.
#include "cpu/kernel/decode_e4m3.h"
#include "cpu/kernel/decode_functions.h"

namespace rootdk::cpu {

const DecodeTable& avx512vbmi_decode() {
  static constexpr DecodeTable kTable = table_of_kind<CacheKind::f8e4m3, E4m3Product>();
  return kTable;
}

}  // namespace rootdk::cpu
