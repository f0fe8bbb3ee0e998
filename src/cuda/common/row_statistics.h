#pragma once

// The online softmax of one query row and its statistics. Relative to the running maximum m, with x = logit - m:
//     weight = sum e^x     moment = sum x e^x     square = sum e^(2 x)
// All three rescale when m grows, and partial sums over disjoint keys taken at the same m add up, so the lanes that
// share a row may each keep their own part. docs/statistics.md has the derivation.

#include <cmath>
#include <cstdint>

namespace rootdk::cuda {

inline constexpr float kLog2E = 1.4426950408889634f;

__device__ inline float exp_natural(float x) { return exp2f(x * kLog2E); }

struct RowSums {
  float maximum = -INFINITY;
  float weight = 0.0f, moment = 0.0f, square = 0.0f;

  // Moves the sums to a new maximum, which is at least the old one; returns the factor for accumulated outputs.
  __device__ float rescale(float new_maximum) {
    const float shift = maximum == -INFINITY ? 0.0f : maximum - new_maximum;  // nothing is accumulated at -inf
    const float factor = exp_natural(shift);
    moment = factor * (moment + shift * weight);
    weight *= factor;
    square *= factor * factor;
    maximum = new_maximum;
    return factor;
  }

  // The point that logits are taken relative to: finite even where every key so far is masked.
  __device__ float origin() const { return maximum == -INFINITY ? 0.0f : maximum; }

  // Adds one key and returns e^x.
  __device__ float add(float logit, bool with_moments) {
    const float x = logit - origin();
    const float e = exp_natural(x);
    weight += e;
    if (with_moments) {
      moment += e > 0.0f ? x * e : 0.0f;  // x may be -inf
      square += e * e;
    }
    return e;
  }
};

// The results of a finished row. Weights are those of real keys, with the sink in the denominator.
struct RowResult {
  float lse = -INFINITY;
  float max_logit = -INFINITY;
  float max_weight = 0.0f;  // also the factor that turns accumulated e^x v into the output
  float entropy = 0.0f, sum_p2 = 0.0f;
};

// `sink` is -inf if there is none.
__device__ inline RowResult finish(const RowSums& sums, float sink) {
  RowResult result;
  // The running maximum ignores NaN; the results of a row with a NaN must be NaN.
  result.max_logit = isnan(sums.weight) && sums.maximum < INFINITY ? sums.weight : sums.maximum;
  if (sums.weight == 0.0f) {  // no visible key
    result.lse = sink;
    return result;
  }
  const float top = fmaxf(sums.origin(), sink);
  const float log_total = logf(sums.weight * exp_natural(sums.origin() - top) + exp_natural(sink - top));
  const float log_max_weight = (sums.origin() - top) - log_total;
  result.lse = top + log_total;
  result.max_weight = exp_natural(log_max_weight);
  result.entropy = -result.max_weight * (sums.moment + log_max_weight * sums.weight);
  result.sum_p2 = result.max_weight * result.max_weight * sums.square;
  return result;
}

}  // namespace rootdk::cuda
