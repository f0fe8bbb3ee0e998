#include "layers/loss.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "layers/rows.h"
#include "layers/vector_math.h"

namespace rootdk {
namespace {

// exp(x - largest) into out; returns their sum.
ROOTDK_VECTOR_CLONES float exponentials(const float* x, float largest, float* out, std::int64_t width) {
  for (std::int64_t d = 0; d < width; ++d) out[d] = vector_math::exp(x[d] - largest);
  float lanes[16] = {};
  std::int64_t d = 0;
  for (; d + 16 <= width; d += 16) {
    for (int lane = 0; lane < 16; ++lane) lanes[lane] += out[d + lane];
  }
  for (; d < width; ++d) lanes[0] += out[d];
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

}  // namespace

double cross_entropy(Context& context, const Value& logits, std::span<const std::int32_t> targets, double weight) {
  const std::int64_t rows = logits->rows(), width = logits->width();
  require(static_cast<std::int64_t>(targets.size()) == rows, "cross_entropy: ", targets.size(), " targets for ", rows,
          " rows");
  std::int64_t counted = 0;
  for (const std::int32_t target : targets) {
    require(target == kIgnoredTarget || (target >= 0 && target < width), "cross_entropy: target ", target,
            " is outside the ", width, " classes");
    if (target != kIgnoredTarget) ++counted;
  }
  if (counted == 0) return 0.0;
  float* grad = context.tape ? logits->grad_data() : nullptr;
  const auto factor = static_cast<float>(weight / static_cast<double>(counted));
  std::vector<double> losses(static_cast<std::size_t>(rows));
  for_row_blocks(context, rows, kRowBlock, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> exponential(static_cast<std::size_t>(width));
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int32_t target = targets[static_cast<std::size_t>(row)];
      if (target == kIgnoredTarget) continue;
      const float* x = logits->data() + row * width;
      const float largest = *std::max_element(x, x + width);
      const float sum = exponentials(x, largest, exponential.data(), width);
      losses[static_cast<std::size_t>(row)] = std::log(static_cast<double>(sum)) + largest - x[target];
      if (!grad) continue;
      float* out = grad + row * width;
      for (std::int64_t d = 0; d < width; ++d) out[d] += factor * exponential[static_cast<std::size_t>(d)] / sum;
      out[target] -= factor;
    }
  });
  double total = 0;
  for (const double loss : losses) total += loss;
  return total / static_cast<double>(counted);
}

}  // namespace rootdk
