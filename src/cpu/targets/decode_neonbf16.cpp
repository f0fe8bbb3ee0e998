// Decoding over bf16 and e4m3 with products of bf16 (64-bit Arm): see src/cpu/README.md.
#include "cpu/simd/neon.h"
// The vector comes first.
#include "cpu/simd/e4m3_neon.h"
// The products on top of it.
#include "cpu/kernel/decode_e4m3_rows.h"
#include "cpu/kernel/decode_functions.h"

namespace rootdk::cpu {

const DecodeTable& neonbf16_decode() {
  static constexpr DecodeTable kTable = [] {
    DecodeTable table = table_of_kind<CacheKind::bf16, Bf16Product>();
    table.kinds[static_cast<int>(CacheKind::f8e4m3)] = decode_function<E4m3RowProduct>();
    return table;
  }();
  return kTable;
}

}  // namespace rootdk::cpu
