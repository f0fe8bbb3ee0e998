#pragma once

// The dots of linear_integers.h on targets without byte products: 16-bit products, the even and the odd columns of a
// quad apart. Words has the target's integer instructions. Included once per target: internal linkage.

#include "cpu/kernel/linear_integers.h"

namespace rootdk::cpu {
namespace {

template <class Words, int kRows>
struct PairDots {
  using Int = typename Words::Int;
  struct Weights {
    Int even, odd;
  };
  using Quad = Weights;
  static constexpr int kByteZero = 0, kHalfZero = 8;
  static constexpr bool kPairs = true;
  static constexpr int kTileRows = kRows;

  static Weights bytes(const char* p) {
    const Int all = Words::load(p);
    return {Words::template signed_right<8>(Words::template left<8>(all)), Words::template signed_right<8>(all)};
  }
  static void halves(const char* p, Weights& low, Weights& high) {
    const Int both = Words::load(p), mask = Words::set1_16(15);
    low = {Words::bit_and(both, mask), Words::bit_and(Words::template right<8>(both), mask)};
    high = {Words::bit_and(Words::template right<4>(both), mask), Words::template right<12>(both)};
  }
  static Weights unpacked(const char* p) { return bytes(p); }
  static void unpack(const char* p, char* low, char* high) {
    const Int both = Words::load(p), mask = Words::set1_16(0x0f0f);
    Words::store(low, Words::bit_and(both, mask));
    Words::store(high, Words::bit_and(Words::template right<4>(both), mask));
  }
  static Quad quad(const IntegerRows& x, int64_t at) {
    int32_t two[2];
    __builtin_memcpy(two, x.pairs + at, sizeof two);
    return {set1(two[0]), set1(two[1])};
  }
  static Int dot_bytes(Int sums, Weights w, Quad x) {
    return add(sums, add(Words::multiply_pairs(w.even, x.even), Words::multiply_pairs(w.odd, x.odd)));
  }
  static Int dot_halves(Int sums, Weights w, Quad x) { return dot_bytes(sums, w, x); }
  static Int set1(int32_t x) { return Words::set1(x); }
  static Int add(Int a, Int b) { return Words::add(a, b); }
  static Vec to_float(Int x) { return Words::to_float(x); }
};

}  // namespace
}  // namespace rootdk::cpu
