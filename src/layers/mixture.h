#pragma once

// The routing of a mixture of experts.

#include <memory>
#include <vector>

#include "layers/tape.h"

namespace rootdk {

// For each row the experts it goes to, the largest logit first; equal logits go to the lower number.
struct Routing {
  std::int64_t top_k = 0;
  std::vector<std::int32_t> expert{};  // [rows * top_k]
  Value weight{};                      // [rows, top_k]: softmax over the chosen logits
};
Routing route(Context& context, const Value& logits, std::int64_t top_k);

// Rows of x by index.
using RowIndex = std::shared_ptr<const std::vector<std::int32_t>>;
Value gather_rows(Context& context, const Value& x, RowIndex rows);

// One expert's answers: row j of `answer` belongs to slot slots[j] = row * top_k + place.
struct ExpertAnswer {
  Value answer{};
  RowIndex slots{};
};
// out[row] = sum over experts, in order, of weight[slot] answer.
Value combine(Context& context, const std::vector<ExpertAnswer>& answers, const Routing& routing, std::int64_t width);

}  // namespace rootdk
