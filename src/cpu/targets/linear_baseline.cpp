// Products with stored weights on the baseline target: see src/cpu/README.md.
#include "cpu/simd/sse2.h"
// The vector comes first.
#include "cpu/kernel/linear.h"
#include "cpu/kernel/linear_pairs.h"

namespace rootdk::cpu {
namespace {

struct Sse2Words {
  using Int = __m128i;
  static Int load(const char* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
  static void store(char* p, Int x) { _mm_store_si128(reinterpret_cast<__m128i*>(p), x); }
  static Int set1(int32_t x) { return _mm_set1_epi32(x); }
  static Int set1_16(int16_t x) { return _mm_set1_epi16(x); }
  static Int add(Int a, Int b) { return _mm_add_epi32(a, b); }
  static Int bit_and(Int a, Int b) { return _mm_and_si128(a, b); }
  template <int kBits>
  static Int left(Int x) {
    return _mm_slli_epi16(x, kBits);
  }
  template <int kBits>
  static Int right(Int x) {
    return _mm_srli_epi16(x, kBits);
  }
  template <int kBits>
  static Int signed_right(Int x) {
    return _mm_srai_epi16(x, kBits);
  }
  static Int multiply_pairs(Int a, Int b) { return _mm_madd_epi16(a, b); }
  static Vec to_float(Int x) { return _mm_cvtepi32_ps(x); }
};

}  // namespace

const LinearTable& baseline_linear() {
  static constexpr LinearTable kTable = linear_functions<PairDots<Sse2Words, 3>>();
  return kTable;
}

}  // namespace rootdk::cpu
