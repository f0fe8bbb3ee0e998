#include <cmath>

#include "lab/claims/claims.h"
#include "lab/probe.h"

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
  const std::int64_t rows = bench.samples(8000);
  Finding finding{.quantity = "median |dL/ds|, unscaled, d_k = 512, 64 keys", .expected = 0.0019, .samples = rows};
  Figure figure{
      .title = "Gradient that reaches the logits",
      .x_label = "d_k",
      .y_label = "|dL/ds|",
      .caption = "64 random keys. Unscaled, the typical row learns nothing, while the mean hardly moves.",
      .log_x = true,
      .log_y = true,
      .series = {{.name = "no scale, median"}, {.name = "no scale, mean"}, {.name = "1 / sqrt(d_k), median"}}};
  GradientNorms unscaled, scaled;
  for (std::int64_t head_dim : {16, 64, 256, 512}) {
    unscaled = gradient_norms(bench, random, rows / 2, kKeys, head_dim, Scale::none());
    scaled = gradient_norms(bench, random, rows / 2, kKeys, head_dim, Scale::inverse_sqrt_head_dim());
    const double values[] = {median(unscaled.logits), mean(unscaled.logits), median(scaled.logits)};
    for (std::size_t s = 0; s < 3; ++s) {
      figure.series[s].x.push_back(static_cast<double>(head_dim));
      figure.series[s].y.push_back(values[s]);
    }
  }
  finding.measured = median_interval(unscaled.logits);
  const Interval scaled_median = median_interval(scaled.logits);
  const Interval unscaled_query = mean_interval(unscaled.query), scaled_query = mean_interval(scaled.query);
  finding.details = {{"no scale: median |dL/ds|", 0.0019, finding.measured},
                     {"1 / sqrt(d_k): median |dL/ds|", 0.168, scaled_median},
                     {"no scale: mean |dL/dq|", 1.67, unscaled_query},
                     {"1 / sqrt(d_k): mean |dL/dq|", 0.177, scaled_query}};
  finding.figures.push_back(std::move(figure));
  const bool median_vanishes = finding.measured.value < 0.02 && std::abs(scaled_median.value - 0.168) < 0.02;
  const bool mean_stays = unscaled_query.value > 1.0 && std::abs(scaled_query.value - 0.177) < 0.02;
  finding.verdict = median_vanishes && mean_stays ? Verdict::holds_with_a_correction : Verdict::does_not_hold;
  finding.note =
      median_vanishes && mean_stays
          ? "The typical row (the median) passes almost nothing; the mean |dL/dq| does not vanish, it is ten times "
            "larger, carried by the few rows that are not saturated. Nothing explodes in one layer either."
          : "The gradients do not behave as p (1 - p) says.";
  return finding;
}

}  // namespace rootdk::lab
