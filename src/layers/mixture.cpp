#include "layers/mixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/check.h"

namespace rootdk {
namespace {

void choose(const float* logits, std::int64_t experts, std::int64_t top_k, std::int32_t* chosen, float* weight) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(experts));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return logits[a] > logits[b]; });
  double sum = 0;
  for (std::int64_t place = 0; place < top_k; ++place) {
    chosen[place] = order[static_cast<std::size_t>(place)];
    sum += std::exp(static_cast<double>(logits[chosen[place]]) - logits[chosen[0]]);
  }
  for (std::int64_t place = 0; place < top_k; ++place) {
    weight[place] = static_cast<float>(std::exp(static_cast<double>(logits[chosen[place]]) - logits[chosen[0]]) / sum);
  }
}

}  // namespace

Routing route(Context& context, const Value& logits, std::int64_t top_k) {
  const std::int64_t rows = logits->rows(), experts = logits->width();
  require(top_k > 0 && top_k <= experts, "mixture: top_k ", top_k, " of ", experts, " experts");
  Routing routing{.top_k = top_k,
                  .expert = std::vector<std::int32_t>(static_cast<std::size_t>(rows * top_k)),
                  .weight = make_value({rows, top_k})};
  for (std::int64_t row = 0; row < rows; ++row) {
    choose(logits->data() + row * experts, experts, top_k, routing.expert.data() + row * top_k,
           routing.weight->data() + row * top_k);
  }
  if (context.tape) {
    context.tape->record([logits, weight = routing.weight, chosen = routing.expert, rows, experts, top_k] {
      const float* grad = weight->grad_data();
      for (std::int64_t row = 0; row < rows; ++row) {
        double mean = 0;
        for (std::int64_t place = row * top_k; place < (row + 1) * top_k; ++place) {
          mean += static_cast<double>(weight->data()[place]) * grad[place];
        }
        for (std::int64_t place = row * top_k; place < (row + 1) * top_k; ++place) {
          logits->grad_data()[row * experts + chosen[static_cast<std::size_t>(place)]] +=
              static_cast<float>(weight->data()[place] * (grad[place] - mean));
        }
      }
    });
  }
  return routing;
}

Value gather_rows(Context& context, const Value& x, RowIndex rows) {
  const std::int64_t width = x->width();
  Value out = make_value({static_cast<std::int64_t>(rows->size()), width});
  for (std::size_t i = 0; i < rows->size(); ++i) {
    std::copy_n(x->data() + (*rows)[i] * width, width, out->data() + static_cast<std::int64_t>(i) * width);
  }
  if (context.tape) {
    context.tape->record([x, out, rows, width] {
      const float* grad_out = out->grad_data();
      for (std::size_t i = 0; i < rows->size(); ++i) {
        float* grad = x->grad_data() + (*rows)[i] * width;
        for (std::int64_t d = 0; d < width; ++d) grad[d] += grad_out[static_cast<std::int64_t>(i) * width + d];
      }
    });
  }
  return out;
}

Value combine(Context& context, const std::vector<ExpertAnswer>& answers, const Routing& routing, std::int64_t width) {
  Value out = make_value({routing.weight->rows(), width});
  const std::int64_t top_k = routing.top_k;
  for (const ExpertAnswer& expert : answers) {
    for (std::size_t j = 0; j < expert.slots->size(); ++j) {
      const std::int32_t slot = (*expert.slots)[j];
      const float weight = routing.weight->data()[slot];
      const float* answer = expert.answer->data() + static_cast<std::int64_t>(j) * width;
      float* sum = out->data() + slot / top_k * width;
      for (std::int64_t d = 0; d < width; ++d) sum[d] += weight * answer[d];
    }
  }
  if (context.tape) {
    context.tape->record([answers, weights = routing.weight, out, width, top_k] {
      const float* grad_out = out->grad_data();
      for (const ExpertAnswer& expert : answers) {
        for (std::size_t j = 0; j < expert.slots->size(); ++j) {
          const std::int32_t slot = (*expert.slots)[j];
          const float* grad = grad_out + slot / top_k * width;
          const std::int64_t row = static_cast<std::int64_t>(j) * width;
          double grad_weight = 0;
          for (std::int64_t d = 0; d < width; ++d) {
            grad_weight += static_cast<double>(grad[d]) * expert.answer->data()[row + d];
            expert.answer->grad_data()[row + d] += weights->data()[slot] * grad[d];
          }
          weights->grad_data()[slot] += static_cast<float>(grad_weight);
        }
      }
    });
  }
  return out;
}

}  // namespace rootdk
