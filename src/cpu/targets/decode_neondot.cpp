// Decoding over int8 with products of bytes (64-bit Arm with dot products): see src/cpu/README.md.
#include "cpu/simd/neon.h"
// The vector comes first.
#include "cpu/simd/bytes_neon.h"
// The product on top of it.
#include "cpu/kernel/decode_bytes_rows.h"
#include "cpu/kernel/decode_functions.h"

namespace rootdk::cpu {

const DecodeTable& neondot_decode() {
  static constexpr DecodeTable kTable = table_of_kind<CacheKind::i8, ByteProduct<ByteRowScores>>();
  return kTable;
}

}  // namespace rootdk::cpu
