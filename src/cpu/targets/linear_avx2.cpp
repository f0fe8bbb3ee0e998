// Products with stored weights on the avx2 target: see src/cpu/README.md.
#include "cpu/simd/avx2.h"
// The vector comes first.
#include "cpu/kernel/linear.h"

namespace rootdk::cpu {
namespace {

struct Avx2Integers {
  static Vec load_i8(const int8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  static Vec load_i4(const uint8_t* p, bool high) {
    const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    const __m256i halves = high ? _mm256_srli_epi32(bytes, 4) : _mm256_and_si256(bytes, _mm256_set1_epi32(15));
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(halves, _mm256_set1_epi32(8)));
  }
};

}  // namespace

const LinearTable& avx2_linear() {
  static constexpr LinearTable kTable = linear_functions<Avx2Integers>();
  return kTable;
}

}  // namespace rootdk::cpu
