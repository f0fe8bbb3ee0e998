#pragma once

// The loop that small experiments train with: Adam on fresh random examples, judged on the last tenth of the steps.

#include <functional>
#include <span>
#include <vector>

#include "lab/sampling.h"
#include "layers/tape.h"

namespace rootdk::lab {

// Fills each parameter by its name: norms with 1, biases with 0, matrices with variance 1 / inputs, tables (names that
// end in "table") with variance 1.
void initialise(const Parameters& parameters, Random& random);

struct Examples {
  Value logits;                       // [rows, classes]
  std::vector<std::int32_t> answers;  // [rows]
};

// Rows whose largest logit is the answer.
std::int64_t right_answers(const Value& logits, std::span<const std::int32_t> answers);

// The share of right answers over the last tenth of the steps. `forward` draws a batch and runs the model on it.
double train_and_judge(const Parameters& parameters, int steps, double learning_rate,
                       const std::function<Examples(Context&)>& forward);

}  // namespace rootdk::lab
