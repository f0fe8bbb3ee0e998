#include "cpu/row_statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace rootdk::cpu {
namespace {

Strided<float, 3> row_view(const TensorView& view) {
  return view.defined() ? write<float, 3>(view) : Strided<float, 3>();
}

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

}  // namespace

RowStatistics::RowStatistics(const AttentionStats& stats)
    : lse_(row_view(stats.lse)),
      max_logit_(row_view(stats.max_logit)),
      max_weight_(row_view(stats.max_weight)),
      entropy_(row_view(stats.entropy)),
      sum_p2_(row_view(stats.sum_p2)) {
  any_ = lse_ || max_logit_ || max_weight_ || needs_sums();
}

RowNormaliser RowStatistics::finish(const RowEnd& end, std::int64_t batch, std::int64_t head, std::int64_t i) const {
  // A NaN among the logits is in the sum; comparisons have kept it out of the maximum.
  if (std::isnan(end.sum)) return finish_nan(batch, head, i);
  const bool seen = end.max != -std::numeric_limits<float>::infinity();
  // What the weights are relative to, and by how much the largest logit differs from it: the product's rounding.
  const float base = seen ? end.max * end.scale : end.max;
  const double max_logit = seen ? static_cast<double>(end.max) * end.scale : end.max;
  // The denominator relative to 2^top, the sink included.
  double denominator = end.sum, top = base, shift = 1.0;
  if (end.sink != kMinusInfinity) {
    top = std::max<double>(base, end.sink);
    shift = seen ? std::exp2(base - top) : 0.0;
    denominator = end.sum * shift + std::exp2(end.sink - top);
  }
  const double factor = seen ? shift / denominator : 0.0;
  if (any_) {
    const double log_sum = std::log(denominator);
    if (lse_) {
      const bool none = !seen && end.sink == kMinusInfinity;
      lse_(batch, head, i) = static_cast<float>(none ? kMinusInfinity : top * std::numbers::ln2 + log_sum);
    }
    if (max_logit_) max_logit_(batch, head, i) = static_cast<float>(max_logit * std::numbers::ln2);
    if (max_weight_)
      max_weight_(batch, head, i) =
          seen ? static_cast<float>(factor * std::exp2(end.fused ? max_logit - base : 0.0)) : 0.0f;
    if (entropy_) {
      // -sum p ln p with p = 2^x factor; ln factor without the quotient's rounding.
      const double log_factor = (base - top) * std::numbers::ln2 - log_sum;
      const double entropy = -factor * (end.weighted * std::numbers::ln2 + end.sum * log_factor);
      entropy_(batch, head, i) = seen ? static_cast<float>(std::max(entropy, 0.0)) : 0.0f;
    }
    if (sum_p2_) sum_p2_(batch, head, i) = static_cast<float>(end.squares * factor * factor);
  }
  return {.max = seen ? end.max : 0.0f, .factor = static_cast<float>(factor)};
}

RowNormaliser RowStatistics::finish_nan(std::int64_t batch, std::int64_t head, std::int64_t i) const {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const auto& view : {lse_, max_logit_, max_weight_, entropy_, sum_p2_}) {
    if (view) view(batch, head, i) = kNan;
  }
  return {.max = kNan, .factor = kNan};
}

}  // namespace rootdk::cpu
