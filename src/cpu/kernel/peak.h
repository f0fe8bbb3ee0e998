#pragma once

// The fastest that a target's products can go: independent multiply-adds on registers, nothing else. The benchmark
// measures it beside each run. Included once per target: internal linkage.

#include "cpu/simd/common.h"

namespace rootdk::cpu {
namespace {

constexpr int kPeakChains = 12;  // more than latency times throughput of any target

// Returns the floating-point operations done; the sum keeps them alive.
inline int64_t float_peak(int64_t rounds, float* sum) {
  Vec chain[kPeakChains];
#pragma GCC unroll 12
  for (int i = 0; i < kPeakChains; ++i) chain[i] = Simd::set1(static_cast<float>(i));
  const Vec a = Simd::set1(0.999f), b = Simd::set1(1e-3f);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kPeakChains; ++i) chain[i] = Simd::fma(chain[i], a, b);
  }
  Vec total = Simd::zero();
#pragma GCC unroll 12
  for (int i = 0; i < kPeakChains; ++i) total = Simd::add(total, chain[i]);
  *sum = Simd::reduce_add(total);
  return rounds * kPeakChains * kWidth * 2;
}

}  // namespace
}  // namespace rootdk::cpu
