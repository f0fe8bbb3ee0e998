// Products with stored weights on the avx2 target: see src/cpu/README.md.
#include "cpu/simd/avx2.h"
// The vector comes first.
#include "cpu/kernel/linear.h"
#include "cpu/kernel/linear_pairs.h"

namespace rootdk::cpu {
namespace {

struct Avx2Words {
  using Int = __m256i;
  static Int load(const char* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static void store(char* p, Int x) { _mm256_store_si256(reinterpret_cast<__m256i*>(p), x); }
  static Int set1(int32_t x) { return _mm256_set1_epi32(x); }
  static Int set1_16(int16_t x) { return _mm256_set1_epi16(x); }
  static Int add(Int a, Int b) { return _mm256_add_epi32(a, b); }
  static Int bit_and(Int a, Int b) { return _mm256_and_si256(a, b); }
  template <int kBits>
  static Int left(Int x) {
    return _mm256_slli_epi16(x, kBits);
  }
  template <int kBits>
  static Int right(Int x) {
    return _mm256_srli_epi16(x, kBits);
  }
  template <int kBits>
  static Int signed_right(Int x) {
    return _mm256_srai_epi16(x, kBits);
  }
  static Int multiply_pairs(Int a, Int b) { return _mm256_madd_epi16(a, b); }
  static Vec to_float(Int x) { return _mm256_cvtepi32_ps(x); }
};

}  // namespace

const LinearTable& avx2_linear() {
  static constexpr LinearTable kTable = linear_functions<PairDots<Avx2Words, 3>>();
  return kTable;
}

}  // namespace rootdk::cpu
