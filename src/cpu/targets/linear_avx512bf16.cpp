// Products with stored weights on the avx512bf16 target, which has products of bytes too: see src/cpu/README.md.
#include "cpu/simd/avx512.h"
// The vector comes first.
#include "cpu/simd/pairs_avx512.h"
// The products on top of it.
#include "cpu/kernel/linear_bf16.h"

namespace rootdk::cpu {
namespace {

// vpdpbusd: unsigned weights, signed x.
struct VnniDots {
  using Int = __m512i;
  using Weights = __m512i;
  using Quad = __m512i;
  static constexpr int kByteZero = 128, kHalfZero = 8;
  static constexpr bool kPairs = false;
  static constexpr int kTileRows = 6;

  static Weights bytes(const char* p) { return _mm512_xor_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(-128)); }
  static void halves(const char* p, Weights& low, Weights& high) {
    const __m512i both = _mm512_loadu_si512(p), mask = _mm512_set1_epi8(15);
    low = _mm512_and_si512(both, mask);
    high = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
  }
  static Weights unpacked(const char* p) { return _mm512_load_si512(p); }
  static void unpack(const char* p, char* low, char* high) {
    Weights l, h;
    halves(p, l, h);
    _mm512_store_si512(low, l);
    _mm512_store_si512(high, h);
  }
  static Quad quad(const IntegerRows& x, int64_t at) {
    int four;
    __builtin_memcpy(&four, x.bytes + at, sizeof four);
    return _mm512_set1_epi32(four);
  }
  static Int dot_bytes(Int sums, Weights w, Quad x) { return _mm512_dpbusd_epi32(sums, w, x); }
  static Int dot_halves(Int sums, Weights w, Quad x) { return _mm512_dpbusd_epi32(sums, w, x); }
  static Int set1(int32_t x) { return _mm512_set1_epi32(x); }
  static Int add(Int a, Int b) { return _mm512_add_epi32(a, b); }
  static Vec to_float(Int x) { return _mm512_cvtepi32_ps(x); }
};

}  // namespace

const LinearTable& avx512bf16_linear() {
  static constexpr LinearTable kTable = [] {
    LinearTable table = linear_functions<VnniDots>();
    table.narrow = narrow_block;
    return table;
  }();
  return kTable;
}

}  // namespace rootdk::cpu
