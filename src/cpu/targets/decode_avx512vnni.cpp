// Decoding over int8 with products of bytes (avx512vnni): see src/cpu/README.md.
#include "cpu/simd/avx512.h"
// The vector comes first.
#include "cpu/simd/bytes_avx512.h"
// The product on top of it.
#include "cpu/kernel/decode_bytes_avx512.h"
#include "cpu/kernel/decode_functions.h"

namespace rootdk::cpu {

const DecodeTable& avx512vnni_decode() {
  static constexpr DecodeTable kTable = table_of_kind<CacheKind::i8, ByteProduct<ByteScores>>();
  return kTable;
}

}  // namespace rootdk::cpu
