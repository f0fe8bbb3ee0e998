#include <cmath>

#include "lab/claims/claims.h"
#include "lab/probe.h"
#include "lab/sentence.h"

namespace rootdk::lab {
namespace {

struct GradientNorms {
  std::vector<double> logits, query;  // |dL/ds| and |dL/dq| of each row
};

double norm(std::span<const float> values) {
  double sum = 0;
  for (float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum);
}

// One query a set of keys; a loss that reads one value dimension with weight 1, so that dL/dp is standard normal.
// The gradient of a bias of zeros is dL/ds.
GradientNorms gradient_norms(const Bench& bench, Random& random, std::int64_t rows, std::int64_t keys,
                             std::int64_t head_dim, const Scale& scale) {
  const Tensor q = random.normal_tensor({rows, 1, 1, head_dim}), k = random.normal_tensor({rows, 1, keys, head_dim});
  const Tensor v = random.normal_tensor({rows, 1, keys, 1}), bias(DType::f32, {rows, 1, 1, keys});
  Tensor out(DType::f32, {rows, 1, 1, 1}), lse(DType::f32, {rows, 1, 1}), grad_out(DType::f32, {rows, 1, 1, 1});
  for (float& g : grad_out.values<float>()) g = 1;
  const AttentionParams params{.logits = {.scale = scale}, .bias = bias};
  bench.attend(q, k, v, out, params, {.lse = lse});
  Tensor grad_q(DType::f32, {rows, 1, 1, head_dim}), grad_s(DType::f32, {rows, 1, 1, keys});
  attention_backward({.q = q, .k = k, .v = v, .out = out, .lse = lse}, {.out = grad_out}, {.q = grad_q, .bias = grad_s},
                     params);
  GradientNorms norms;
  for (std::int64_t r = 0; r < rows; ++r) {
    norms.logits.push_back(
        norm(grad_s.values<float>().subspan(static_cast<std::size_t>(r * keys), static_cast<std::size_t>(keys))));
    norms.query.push_back(norm(
        grad_q.values<float>().subspan(static_cast<std::size_t>(r * head_dim), static_cast<std::size_t>(head_dim))));
  }
  return norms;
}

}  // namespace

Finding vanishing_gradients(const Bench& bench) {
  Random random(bench.seed, 7);
  constexpr std::int64_t kKeys = 64;
  const std::int64_t rows = bench.samples(8000) / 2;
  constexpr double kVanished = 0.1;  // of what the scaled softmax passes
  Finding finding{.quantity = "median |dL/ds| without a scale over that with 1 / sqrt(d_k), d_k = 512",
                  .expected = kVanished,
                  .relation = Relation::at_most,
                  .samples = rows};
  Figure figure{.title = "Gradient that reaches the logits",
                .x_label = "d_k",
                .y_label = "|dL/ds|",
                .log_x = true,
                .log_y = true,
                .series = {{.name = "no scale, median"},
                           {.name = "no scale, mean"},
                           {.name = "1 / sqrt(d_k), median"},
                           {.name = "1 / sqrt(d_k), mean"}}};
  GradientNorms unscaled, scaled;
  for (std::int64_t head_dim : {16, 64, 256, 512}) {
    unscaled = gradient_norms(bench, random, rows, kKeys, head_dim, Scale::none());
    scaled = gradient_norms(bench, random, rows, kKeys, head_dim, Scale::inverse_sqrt_head_dim());
    const Interval values[] = {median_interval(unscaled.logits), mean_interval(unscaled.logits),
                               median_interval(scaled.logits), mean_interval(scaled.logits)};
    for (std::size_t s = 0; s < 4; ++s) {
      figure.series[s].x.push_back(static_cast<double>(head_dim));
      figure.series[s].y.push_back(values[s].value);
      if (head_dim == 16 || head_dim == 512) {
        finding.details.push_back(
            {"d_k = " + std::to_string(head_dim) + ", " + figure.series[s].name + " |dL/ds|", std::nan(""), values[s]});
      }
    }
  }
  const Interval medians[] = {median_interval(unscaled.logits), median_interval(scaled.logits)};
  const Interval means[] = {mean_interval(unscaled.query), mean_interval(scaled.query)};
  finding.measured = quotient(medians[0], medians[1]);
  const double median_fall = figure.series[0].y.front() / figure.series[0].y.back(),
               mean_fall = figure.series[1].y.front() / figure.series[1].y.back();
  const Interval query_ratio = quotient(means[0], means[1]);
  const double chain = std::sqrt(512.0);
  finding.details.insert(finding.details.end(),
                         {{"no scale: median |dL/ds| at d_k = 16 over d_k = 512", std::nan(""), exact(median_fall)},
                          {"no scale: mean |dL/ds| at d_k = 16 over d_k = 512", std::nan(""), exact(mean_fall)},
                          {"d_k = 512, no scale: mean |dL/dq|", std::nan(""), means[0]},
                          {"d_k = 512, 1 / sqrt(d_k): mean |dL/dq|", std::nan(""), means[1]},
                          {"mean |dL/dq| without a scale over that with it", std::nan(""), query_ratio},
                          {"the same if the softmax passed as much: sqrt(d_k)", chain, not_measured()}});
  figure.caption = "64 random keys. Without a scale the median falls " + say(median_fall) +
                   " times from d_k = 16 to d_k = 512, and the mean " + say(mean_fall) + " times.";
  figure.series.pop_back();  // it would cover the median of the scaled rows; the table has it
  finding.figures.push_back(std::move(figure));
  const bool median_vanishes = finding.measured.value < kVanished && std::abs(medians[1].value - 0.168) < 0.02;
  const bool mean_stays = means[0].value > 1.0 && std::abs(means[1].value - 0.177) < 0.02;
  finding.verdict = median_vanishes && mean_stays ? Verdict::holds_with_a_correction : Verdict::does_not_hold;
  finding.note =
      median_vanishes && mean_stays
          ? "The typical row (the median) passes " + say(finding.measured.value) +
                " of the gradient that a scaled one does. The mean falls far less, since a few rows are not saturated. "
                "At the query the mean |dL/dq| is even " +
                say(query_ratio.value) + " times that of the scaled layer: less than the " + say(chain, 3) +
                " that leaving out the division by sqrt(512) alone would give."
          : "The gradients do not behave as p (1 - p) says.";
  finding.setup = "64 random keys a query; a loss that reads one value, so that dL/dp is standard normal.";
  return finding;
}

}  // namespace rootdk::lab
