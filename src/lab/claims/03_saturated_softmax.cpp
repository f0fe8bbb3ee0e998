#include <cmath>

#include "lab/claims/claims.h"
#include "lab/probe.h"
#include "lab/sentence.h"

namespace rootdk::lab {
namespace {

// softmax of three numbers through the kernel: head_dim 1, q = 1, the numbers as keys.
template <class T>
std::vector<double> softmax_of(const Bench& bench, std::initializer_list<double> scores, double scale) {
  Tensor q(dtype_of<T>, {1, 1, 1, 1}), k(dtype_of<T>, {1, 1, 3, 1}), v(dtype_of<T>, {1, 1, 3, 1});
  Tensor out(dtype_of<T>, {1, 1, 1, 1}), weights(dtype_of<T>, {1, 1, 1, 3});
  q.values<T>()[0] = 1;
  std::size_t j = 0;
  for (double score : scores) k.values<T>()[j++] = static_cast<T>(score);
  bench.attend(q, k, v, out, {.logits = {.scale = scale}}, {.weights = weights});
  return {weights.values<T>().begin(), weights.values<T>().end()};
}

}  // namespace

Finding saturated_softmax(const Bench& bench) {
  const auto in_double = softmax_of<double>(bench, {25, 2, -3}, 1.0);
  const auto in_float = softmax_of<float>(bench, {25, 2, -3}, 1.0);
  const auto scaled = softmax_of<double>(bench, {25, 2, -3}, 1.0 / std::sqrt(512.0));
  const double left_out = in_double[1] + in_double[2];  // 1 - p without cancellation
  const double gradient = in_float[0] * (1 - in_float[0]);

  Finding finding{.quantity = "1 - p of the largest weight", .expected = std::exp(-23.0) + std::exp(-28.0)};
  finding.measured = exact(left_out);
  finding.samples = 1;
  finding.details = {{"softmax[25, 2, -3]: 1 - p", 1.033e-10, exact(left_out)},
                     {"the same in float32: p (1 - p)", 0, exact(gradient)},
                     {"divided by sqrt(512): p of 25", 0.605, exact(scaled[0])},
                     {"divided by sqrt(512): p of 2", 0.219, exact(scaled[1])},
                     {"divided by sqrt(512): p of -3", 0.176, exact(scaled[2])}};
  finding.figures.push_back({.kind = Figure::Kind::bars,
                             .title = "softmax of 25, 2, -3",
                             .x_label = "score",
                             .y_label = "weight",
                             .caption = "As it is, and divided by sqrt(512).",
                             .series = {{.name = "unscaled", .x = {0, 1, 2}, .y = in_double},
                                        {.name = "divided by sqrt(512)", .x = {0, 1, 2}, .y = scaled}},
                             .column_labels = {"25", "2", "-3"}});
  const bool holds = std::abs(left_out - 1.033e-10) < 2e-13 && gradient == 0 && std::abs(scaled[0] - 0.605) < 1e-3 &&
                     std::abs(scaled[1] - 0.219) < 1e-3 && std::abs(scaled[2] - 0.176) < 1e-3;
  finding.verdict = holds ? Verdict::holds : Verdict::does_not_hold;
  finding.note =
      holds
          ? "All but the largest get " + say(left_out, 2) +
                " together; in float32 p rounds to 1 and the gradient p (1 - p) is exactly 0. Divided by sqrt(512) the "
                "weights are " +
                say(scaled[0]) + ", " + say(scaled[1]) + " and " + say(scaled[2]) + "."
          : "The weights are not those of softmax[25, 2, -3].";
  return finding;
}

}  // namespace rootdk::lab
