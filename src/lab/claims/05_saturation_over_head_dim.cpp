#include <algorithm>
#include <cmath>
#include <numbers>

#include "lab/claims/claims.h"
#include "lab/normal_maximum.h"
#include "lab/probe.h"
#include "lab/sentence.h"

namespace rootdk::lab {
namespace {

// The share of rows with a weight over t, for m = E max / sqrt(d) < 0.3: the gap between the two largest scores
// decides.
double share_in_closed_form(double m, double t) {
  return std::pow((1 - t) / t, m) * std::sin(std::numbers::pi * m) / (std::numbers::pi * m);
}

}  // namespace

Finding saturation_over_head_dim(const Bench& bench) {
  Random random(bench.seed, 5);
  constexpr std::int64_t kKeys = 64;
  constexpr double kThreshold = 0.9;
  const std::int64_t rows = bench.samples(16000);
  const double maximum = expected_normal_maximum(kKeys);
  Finding finding{.quantity = "share of rows with a weight over 0.9, unscaled, d_k = 512", .samples = rows};
  Figure figure{
      .title = "Rows with a weight over 0.9",
      .x_label = "d_k",
      .y_label = "share of rows",
      .log_x = true,
      .series = {{.name = "no scale"}, {.name = "1 / sqrt(d_k)"}, {.name = "closed form", .markers_only = true}}};
  // Seen in an independent run at these sizes; the closed form serves where m < 0.3.
  const std::vector<std::pair<std::int64_t, double>> seen = {{64, 0.44}, {256, 0.70}, {512, 0.78}};
  bool all = true;
  double most_scaled = 0;
  for (std::int64_t head_dim : {16, 32, 64, 128, 256, 512}) {
    const RowInputs inputs = random_rows(random, {rows, kKeys, head_dim});
    const auto unscaled = row_statistics(bench, inputs.q, inputs.k, {.logits = {.scale = Scale::none()}});
    const auto scaled = row_statistics(bench, inputs.q, inputs.k, {});
    const double share = unscaled.share_over(kThreshold);
    const double m = maximum / std::sqrt(static_cast<double>(head_dim));
    figure.series[0].x.push_back(static_cast<double>(head_dim));
    figure.series[0].y.push_back(share);
    figure.series[1].x.push_back(static_cast<double>(head_dim));
    figure.series[1].y.push_back(scaled.share_over(kThreshold));
    if (m < 0.3) {
      figure.series[2].x.push_back(static_cast<double>(head_dim));
      figure.series[2].y.push_back(share_in_closed_form(m, kThreshold));
    }
    finding.measured = unscaled.share_over_interval(kThreshold);
    finding.expected = m < 0.3 ? share_in_closed_form(m, kThreshold) : std::nan("");
    const Interval scaled_share = scaled.share_over_interval(kThreshold);
    finding.details.push_back(
        {"d_k = " + std::to_string(head_dim) + ", no scale: share over 0.9", finding.expected, finding.measured});
    finding.details.push_back(
        {"d_k = " + std::to_string(head_dim) + ", 1 / sqrt(d_k): share over 0.9", 0, scaled_share});
    most_scaled = std::max(most_scaled, scaled_share.value);
    const auto at = std::find_if(seen.begin(), seen.end(), [&](const auto& s) { return s.first == head_dim; });
    all &= (at == seen.end() || std::abs(share - at->second) < 0.03) && scaled_share.value < 0.01;
  }
  const double first = figure.series[0].y.front(), last = figure.series[0].y.back();
  figure.caption = "64 random keys. Without a scale " + say(first) +
                   " of the rows give one key over 0.9 at d_k = 16 and " + say(last) +
                   " at d_k = 512; with it at most " + say(most_scaled) + " at any d_k.";
  finding.figures.push_back(std::move(figure));
  finding.verdict = all ? Verdict::holds : Verdict::does_not_hold;
  finding.note =
      all ? "The gap between the two largest scores grows as sqrt(d_k), and softmax turns a gap of a few units "
            "into one key; with 1 / sqrt(d_k) the gap does not grow."
          : "Saturation does not follow d_k as expected.";
  return finding;
}

}  // namespace rootdk::lab
