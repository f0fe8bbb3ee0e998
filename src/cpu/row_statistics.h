#pragma once

// From the running softmax of a row to its normaliser and its statistics.

#include <cstdint>

#include "core/attention_call.h"
#include "core/strided.h"

namespace rootdk::cpu {

// The state of one row after its last key, as RowStates defines it.
struct RowEnd {
  float max = 0;
  float scale = 1;    // from the maximum to the logit in base 2
  bool fused = true;  // Geometry::fused
  float sum = 0;
  float weighted = 0, squares = 0;  // where statistics are kept
  double sink = 0;                  // -infinity: none
};

// weight = 2^x * factor, x as in RowStates, with max finite even for a row that sees no key.
struct RowNormaliser {
  float max = 0;
  float factor = 0;
};

class RowStatistics {
 public:
  explicit RowStatistics(const AttentionStats& stats);

  bool any() const { return any_; }
  // Entropy and sum_p2, for which the kernel keeps two more sums.
  bool needs_sums() const { return entropy_ || sum_p2_; }

  // Writes the statistics of tensor row i and returns its normaliser.
  RowNormaliser finish(const RowEnd& end, std::int64_t batch, std::int64_t head, std::int64_t i) const;

 private:
  RowNormaliser finish_nan(std::int64_t batch, std::int64_t head, std::int64_t i) const;

  Strided<float, 3> lse_, max_logit_, max_weight_, entropy_, sum_p2_;
  bool any_ = false;
};

}  // namespace rootdk::cpu
