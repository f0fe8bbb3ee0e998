// Why the scores are divided by √d_k: what the softmax of random vectors does with and without it.

#include <cmath>

#include "rootdk/attention.h"
#include "tools/tour/tour.h"

namespace rootdk::tools {
namespace {

constexpr std::int64_t kRows = 64, kKeys = 256;

struct Softmax {
  double keys_read = 0;      // e^(mean entropy)
  double top_weight = 0;     // mean of max_weight
  double gradient_left = 0;  // 1 - mean of sum_p2: the trace of the softmax's Jacobian
};

Softmax measure(std::int64_t head_dim, Scale scale) {
  const Tensor q = normal_tensor({1, 1, kRows, head_dim}, 1), k = normal_tensor({1, 1, kKeys, head_dim}, 2);
  Tensor v(DType::f32, {1, 1, kKeys, 1}), out(DType::f32, {1, 1, kRows, 1});
  Tensor entropy(DType::f32, {1, 1, kRows}), top(DType::f32, {1, 1, kRows}), sum_p2(DType::f32, {1, 1, kRows});
  attention(q, k, v, out, {.logits = {.scale = scale}}, {.max_weight = top, .entropy = entropy, .sum_p2 = sum_p2});
  return {.keys_read = std::exp(mean_of(entropy)), .top_weight = mean_of(top), .gradient_left = 1 - mean_of(sum_p2)};
}

}  // namespace

void show_scale(const Style& style) {
  print_text(format(
      "q · k of two random vectors is a sum of d_k terms: its standard deviation is √d_k. Without the division scores "
      "grow with d_k, the softmax becomes one-hot, and little gradient passes: the trace of its Jacobian is 1 - Σp². "
      "Here: %d random queries over %d keys; effective keys, the largest weight, and the gradient left.",
      int{kRows}, int{kKeys}));
  print_line();
  Table table(1);
  table.add({style.dim("d_k"), style.dim("keys"), style.dim("top"), style.dim("gradient"), "", style.dim("keys"),
             style.dim("top"), style.dim("gradient")});
  for (std::int64_t head_dim : {1, 4, 16, 64, 256, 1024}) {
    std::vector<std::string> row = {format("%4d", static_cast<int>(head_dim))};
    for (const Scale scale : {Scale::none(), Scale::inverse_sqrt_head_dim()}) {
      const Softmax s = measure(head_dim, scale);
      if (row.size() > 1) row.push_back("│");
      row.push_back(format("%.1f", s.keys_read));
      row.push_back(format("%.3f", s.top_weight));
      row.push_back(style.cyan(pad_right(bar(s.gradient_left, 8), 8)) + format(" %.3f", s.gradient_left));
    }
    table.add(row);
  }
  print_line(style.bold("           softmax(q · k)                      softmax(q · k / √d_k)"));
  std::fputs(table.text().c_str(), stdout);
  print_line();
  print_text("With the scale, every row of the right half is nearly the same softmax: d_k no longer matters.");
}

}  // namespace rootdk::tools
