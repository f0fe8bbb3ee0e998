// Decoding on the avx2 target: see src/cpu/README.md.
#include "cpu/simd/avx2.h"
// The vector comes first.
#include "cpu/kernel/decode_functions.h"
#include "cpu/kernel/decode_widened.h"

namespace rootdk::cpu {
namespace {

struct StoredInt8Avx2 : StoredInt8 {
  static Vec load(const int8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
};

template <class Stored, class Values = WidenOnce>
using Product = WidenedProduct<WidenedLanes<Stored, Values>>;

}  // namespace

const DecodeTable& avx2_decode() {
  static constexpr DecodeTable kTable =
      DecodeFunctions<Product<Stored<ElementKind::f32>, InOrder>, Product<Stored<ElementKind::bf16>>,
                      Product<Stored<ElementKind::f16>>, Product<StoredInt8Avx2>, Product<StoredE4m3>>::table();
  return kTable;
}

}  // namespace rootdk::cpu
