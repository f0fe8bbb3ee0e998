// Products with stored weights on the avx512 target: see src/cpu/README.md.
#include "cpu/simd/avx512.h"
// The vector comes first.
#include "cpu/kernel/linear.h"

namespace rootdk::cpu {
namespace {

struct Avx512Integers {
  static Vec load_i8(const int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  // A table of the sixteen numbers, which reads the lowest four bits of each lane.
  static Vec load_i4(const uint8_t* p, bool high) {
    const __m512 numbers = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm512_permutexvar_ps(high ? _mm512_srli_epi32(bytes, 4) : bytes, numbers);
  }
};

}  // namespace

const LinearTable& avx512_linear() {
  static constexpr LinearTable kTable = linear_functions<Avx512Integers>();
  return kTable;
}

}  // namespace rootdk::cpu
