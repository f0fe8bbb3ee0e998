#pragma once

// The yardstick for low precision: attention computed the plain way in an element type. Logits in f32, weights and
// score gradients rounded to the type before they meet v, k and q, sums in f32, results rounded to the type. A fused
// kernel may be at most twice as far from the truth.

#include <map>
#include <string>

#include "support/attention_case.h"

namespace rootdk::test {

struct PlainResults {
  Results values;                      // named as in Results
  std::map<std::string, double> size;  // the largest sum of absolute terms behind an element: what rounding scales with
  double logit_size = 0;               // the largest sum of absolute terms behind a logit
};

PlainResults plain_forward(const AttentionCase& problem);
// The forward results hold what the call reads: out, lse and entropy.
PlainResults plain_backward(const AttentionCase& problem, const Results& forward);

}  // namespace rootdk::test
