#include <algorithm>
#include <cmath>

#include "lab/claims/claims.h"
#include "lab/probe.h"

namespace rootdk::lab {

Finding range_of_scores(const Bench& bench) {
  Random random(bench.seed, 2);
  const std::int64_t count = bench.samples(40000);
  const double expected = std::erf(std::sqrt(2.0));  // two standard deviations of a normal: 0.9545
  Finding finding{.quantity = "share of scores within 2 sqrt(d_k), d_k = 512", .expected = expected, .samples = count};
  Figure figure{.title = "Where 95 % of the scores lie",
                .x_label = "d_k",
                .y_label = "|q.k|",
                .caption = "The 95 % quantile of |q.k| beside 2 sqrt(d_k).",
                .log_x = true,
                .series = {{.name = "measured 95 % quantile", .markers_only = true}, {.name = "2 sqrt(d_k)"}}};
  bool all = true;
  for (std::int64_t head_dim : {16, 64, 256, 512}) {
    const double range = 2 * std::sqrt(static_cast<double>(head_dim));
    std::vector<double> logits = sample_logits(bench, random, count, head_dim, {.logits = {.scale = Scale::none()}});
    for (double& logit : logits) logit = std::abs(logit);
    const auto inside = std::count_if(logits.begin(), logits.end(), [&](double x) { return x <= range; });
    finding.measured = share_interval(inside, count);
    finding.details.push_back(
        {"d_k = " + std::to_string(head_dim) + ": share within 2 sqrt(d_k)", expected, finding.measured});
    finding.details.push_back({"d_k = " + std::to_string(head_dim) + ": 95 % quantile of |q.k|", range * 1.96 / 2,
                               exact(quantile(logits, 0.95))});
    all &= std::abs(finding.measured.value - expected) < 0.01;
    figure.series[0].x.push_back(static_cast<double>(head_dim));
    figure.series[0].y.push_back(quantile(logits, 0.95));
    figure.series[1].x.push_back(static_cast<double>(head_dim));
    figure.series[1].y.push_back(range);
  }
  finding.figures.push_back(std::move(figure));
  finding.verdict = all ? Verdict::holds : Verdict::does_not_hold;
  finding.note = all ? "Two standard deviations hold 95 % of the scores: 8, 16, 32 and 45 for d_k 16, 64, 256 and 512; "
                       "a range is not a bound, one score in twenty lies outside."
                     : "The scores do not lie where two standard deviations would put them.";
  return finding;
}

}  // namespace rootdk::lab
