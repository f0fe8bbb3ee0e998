// Products with stored weights on the avx512 target: see src/cpu/README.md.
#include "cpu/simd/avx512.h"
// The vector comes first.
#include "cpu/kernel/linear.h"
#include "cpu/kernel/linear_pairs.h"

namespace rootdk::cpu {
namespace {

struct Avx512Words {
  using Int = __m512i;
  static Int load(const char* p) { return _mm512_loadu_si512(p); }
  static void store(char* p, Int x) { _mm512_store_si512(p, x); }
  static Int set1(int32_t x) { return _mm512_set1_epi32(x); }
  static Int set1_16(int16_t x) { return _mm512_set1_epi16(x); }
  static Int add(Int a, Int b) { return _mm512_add_epi32(a, b); }
  static Int bit_and(Int a, Int b) { return _mm512_and_si512(a, b); }
  template <int kBits>
  static Int left(Int x) {
    return _mm512_slli_epi16(x, kBits);
  }
  template <int kBits>
  static Int right(Int x) {
    return _mm512_srli_epi16(x, kBits);
  }
  template <int kBits>
  static Int signed_right(Int x) {
    return _mm512_srai_epi16(x, kBits);
  }
  static Int multiply_pairs(Int a, Int b) { return _mm512_madd_epi16(a, b); }
  static Vec to_float(Int x) { return _mm512_cvtepi32_ps(x); }
};

}  // namespace

const LinearTable& avx512_linear() {
  static constexpr LinearTable kTable = linear_functions<PairDots<Avx512Words, 4>>();
  return kTable;
}

}  // namespace rootdk::cpu
