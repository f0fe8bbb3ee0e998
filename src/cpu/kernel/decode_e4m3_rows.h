#pragma once

// Products of the decode kernel over e4m3 by products of bf16 (Pairs, E4m3Vectors in simd/e4m3_*.h), lanes along
// head_dim: every e4m3 number is a bf16 number. Each element is widened once for all four rows of a block. Included
// once per target: internal linkage.

#include "cpu/kernel/decode_paired.h"

namespace rootdk::cpu {
namespace {

struct E4m3RowLanes : WidenOnce {
  using Element = uint8_t;
  using Lane = uint16_t;
  using Vector = Pairs::Vector;
  using Sum = Vec;
  static constexpr int kParts = 2;
  struct Loaded {
    Vector parts[kParts];
  };
  static constexpr int kMaxPlanes = Bf16Pairs::kMaxPlanes;
  static constexpr int kLanes = E4m3Vectors::kLanes;
  static constexpr int kLanesAtOnce = kLanes;
  static_assert(kLanes == 2 * kPairedLanes);

  static Loaded load(const uint8_t* p) { return widened(E4m3Vectors::load(p)); }
  static Loaded load_first(const uint8_t* p, int n) { return widened(E4m3Vectors::load_first(p, n)); }
  static Vector load_query(const uint16_t* p) { return Pairs::load(p); }
  static Sum zero() { return Simd::zero(); }
  static Sum dot(Sum sum, Vector a, Vector b) { return Pairs::dot(sum, a, b); }
  static void store_sums(const Sum (&sums)[4][4], float* to, int stride) { Pairs::store_sums(sums, to, stride); }
  static void split(Vec x, Vec y, int planes, uint16_t* to, int plane_stride) {
    Bf16Pairs::split(x, y, planes, to, plane_stride);
  }

  // Two keys are interleaved by bytes, so that widening gives pairs of them.
  using Stored = E4m3Vectors::Vector;
  static constexpr int kPairVectors = 4;
  static Stored load_values(const uint8_t* p) { return E4m3Vectors::load(p); }
  static Stored load_first_values(const uint8_t* p, int n) { return E4m3Vectors::load_first(p, n); }
  static void interleave(Stored a, Stored b, Vector (&pairs)[kPairVectors]) {
    E4m3Vectors::widen(E4m3Vectors::interleave_first(a, b), pairs[0], pairs[1]);
    E4m3Vectors::widen(E4m3Vectors::interleave_second(a, b), pairs[2], pairs[3]);
  }

 private:
  static Loaded widened(E4m3Vectors::Vector x) {
    Loaded result;
    E4m3Vectors::widen(x, result.parts[0], result.parts[1]);
    return result;
  }
};

struct LoadE4m3Row {
  static Pairs::Vector load(const uint8_t* p, int n) {
    return E4m3RowLanes::load_first(p, smaller(n, kPairedLanes)).parts[0];
  }
};

using E4m3RowProduct = PairedProduct<E4m3RowLanes, LoadE4m3Row>;

}  // namespace
}  // namespace rootdk::cpu
