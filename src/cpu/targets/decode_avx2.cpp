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

// e4m3 by way of f16, as on AVX-512 (kernel/decode_avx512.h).
struct StoredE4m3Avx2 : StoredE4m3 {
  static Vec load(const uint8_t* p) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    const __m128i moved = _mm_slli_epi16(_mm_cvtepi8_epi16(bytes), 7);
    const __m128i halves = _mm_and_si128(moved, _mm_set1_epi16(static_cast<short>(0xbf80)));
    const __m128i nan = _mm_cmpeq_epi16(_mm_or_si128(halves, _mm_set1_epi16(static_cast<short>(0x8000))),
                                        _mm_set1_epi16(static_cast<short>(0xbf80)));
    const __m128i marked = _mm_or_si128(halves, _mm_and_si128(nan, _mm_set1_epi16(0x7e00)));
    return _mm256_mul_ps(_mm256_cvtph_ps(marked), _mm256_set1_ps(256.0f));
  }
};

template <class Stored, class Values = WidenOnce>
using Product = WidenedProduct<WidenedLanes<Stored, Values>>;

}  // namespace

const DecodeTable& avx2_decode() {
  static constexpr DecodeTable kTable =
      DecodeFunctions<Product<Stored<ElementKind::f32>, InOrder>, Product<Stored<ElementKind::bf16>>,
                      Product<Stored<ElementKind::f16>>, Product<StoredInt8Avx2>, Product<StoredE4m3Avx2>>::table();
  return kTable;
}

}  // namespace rootdk::cpu
