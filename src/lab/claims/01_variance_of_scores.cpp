#include <cmath>

#include "lab/claims/claims.h"
#include "lab/probe.h"
#include "lab/sentence.h"

namespace rootdk::lab {
namespace {

// The share of values in each of `bins` equal cells of [-limit, limit], as a density over x / sqrt(d_k).
Series histogram(const std::vector<double>& values, double unit, int bins, double limit) {
  Series series{.name = "measured q.k / sqrt(d_k)"};
  std::vector<double> counts(static_cast<std::size_t>(bins));
  const double width = 2 * limit / bins;
  for (double value : values) {
    const double cell = (value / unit + limit) / width;
    if (cell >= 0 && cell < bins) counts[static_cast<std::size_t>(cell)] += 1;
  }
  for (int i = 0; i < bins; ++i) {
    series.x.push_back(-limit + (i + 0.5) * width);
    series.y.push_back(counts[static_cast<std::size_t>(i)] / (static_cast<double>(values.size()) * width));
  }
  return series;
}

Series normal_density(double limit) {
  Series series{.name = "N(0, 1)"};
  for (double x = -limit; x <= limit + 1e-9; x += 0.1) {
    series.x.push_back(x);
    series.y.push_back(std::exp(-x * x / 2) / std::sqrt(2 * std::acos(-1.0)));
  }
  return series;
}

}  // namespace

Finding variance_of_scores(const Bench& bench) {
  Random random(bench.seed, 1);
  const std::int64_t count = bench.samples(100000);
  Finding finding{.quantity = "Var(q.k) at d_k = 512", .expected = 512, .samples = count};
  bool all = true;
  for (std::int64_t head_dim : {16, 64, 256, 512}) {
    const auto d = static_cast<double>(head_dim);
    const std::vector<double> logits =
        sample_logits(bench, random, count, head_dim, {.logits = {.scale = Scale::none()}});
    const Interval measured = variance_interval(logits);
    finding.details.push_back({"d_k = " + std::to_string(head_dim) + ": Var(q.k)", d, measured});
    // The excess kurtosis of a sum of d products of normals is 6 / d.
    finding.details.push_back(
        {"d_k = " + std::to_string(head_dim) + ": excess kurtosis", 6 / d, kurtosis_interval(logits)});
    // Four standard errors: a true claim fails once in sixteen thousand runs.
    all &= std::abs(measured.value - d) < 2 * (measured.high - measured.low);
    finding.measured = measured;
    if (head_dim == 16 || head_dim == 512) {
      finding.figures.push_back({.title = "q.k at d_k = " + std::to_string(head_dim),
                                 .x_label = "q.k / sqrt(d_k)",
                                 .y_label = "density",
                                 .caption = "Scores of independent standard normal q and k against the bell curve.",
                                 .series = {histogram(logits, std::sqrt(d), 60, 4.5), normal_density(4.5)}});
    }
  }
  finding.verdict = all ? Verdict::holds : Verdict::does_not_hold;
  finding.note = all ? "A sum of d_k independent products, each with variance 1, has variance d_k: " +
                           say(finding.measured.value, 3) + " for d_k = 512."
                     : "The variance of the scores is not d_k.";
  return finding;
}

}  // namespace rootdk::lab
