#pragma once

// The online softmax of a group of rows over one score tile, and its statistics. Included once per target:
// internal linkage.

#include "cpu/kernel/math.h"
#include "cpu/kernel/scores.h"

namespace rootdk::cpu {
namespace {

// Score tiles are padded to pairs of vectors, so that two 16-bit stores can be one.
constexpr int kPairOfVectors = 2 * kWidth;

inline float row_max(const float* row, int columns) {
  Vec first = Simd::load(row), second = Simd::load(row + kWidth);
  for (int t = kPairOfVectors; t < columns; t += kPairOfVectors) {
    first = Simd::max(first, Simd::load(row + t));
    second = Simd::max(second, Simd::load(row + t + kWidth));
  }
  return Simd::reduce_max(Simd::max(first, second));
}

struct RowSums {
  float sum;       // of 2^x
  float weighted;  // of x 2^x
  float squares;   // of 2^2x
};

// weights[t] = 2^x with x = row[t] * scale - scaled_max, through Gemm::store_weights.
template <class Gemm, bool kStats, Vec (*kExponential)(Vec) = exp2_of_score<Simd>>
inline RowSums exponentials(const float* row, int columns, float scale, float scaled_max,
                            typename Gemm::Element* weights) {
  const Vec factor = Simd::set1(scale), offset = Simd::set1(-scaled_max);
  Vec sum0 = Simd::zero(), sum1 = Simd::zero();
  Vec weighted0 = Simd::zero(), weighted1 = Simd::zero();
  Vec squares0 = Simd::zero(), squares1 = Simd::zero();
  for (int t = 0; t < columns; t += kPairOfVectors) {
    const Vec x0 = Simd::fma(Simd::load(row + t), factor, offset);
    const Vec x1 = Simd::fma(Simd::load(row + t + kWidth), factor, offset);
    const Vec p0 = kExponential(x0), p1 = kExponential(x1);
    sum0 = Simd::add(sum0, p0);
    sum1 = Simd::add(sum1, p1);
    if constexpr (kStats) {  // clamped, since 0 times -inf is to be 0
      weighted0 = Simd::fma(clamp_exponent(x0), p0, weighted0);
      weighted1 = Simd::fma(clamp_exponent(x1), p1, weighted1);
      squares0 = Simd::fma(p0, p0, squares0);
      squares1 = Simd::fma(p1, p1, squares1);
    }
    Gemm::store_weights(weights + t, p0, p1);
  }
  RowSums sums{Simd::reduce_add(Simd::add(sum0, sum1)), 0.0f, 0.0f};
  if constexpr (kStats) {
    sums.weighted = Simd::reduce_add(Simd::add(weighted0, weighted1));
    sums.squares = Simd::reduce_add(Simd::add(squares0, squares1));
  }
  return sums;
}

// Moves row r of the state to a maximum of at least `tile_max`. Returns the factor on what was summed before.
template <bool kStats>
inline float raise_max(const RowStates& state, int r, float tile_max, float scale) {
  const float before = state.max[r];
  if (!(tile_max > before)) return 1.0f;
  state.max[r] = tile_max;
  if (before == kMinusInfinity) return 0.0f;
  const float difference = before * scale - tile_max * scale;
  const float factor = exp2(difference);
  if constexpr (kStats) {
    state.weighted[r] = factor * (state.weighted[r] + (factor > 0.0f ? difference : 0.0f) * state.sum[r]);
    state.squares[r] *= factor * factor;
  }
  state.sum[r] *= factor;
  return factor;
}

}  // namespace
}  // namespace rootdk::cpu
