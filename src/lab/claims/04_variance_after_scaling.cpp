#include <cmath>

#include "lab/claims/claims.h"
#include "lab/probe.h"

namespace rootdk::lab {

Finding variance_after_scaling(const Bench& bench) {
  Random random(bench.seed, 4);
  const std::int64_t count = bench.samples(40000);
  Finding finding{.quantity = "Var(q.k / sqrt(d_k)) at d_k = 512", .expected = 1, .samples = count};
  Figure figure{.title = "Variance of the logits",
                .x_label = "d_k",
                .y_label = "variance",
                .caption = "Only the square root keeps the variance where it was.",
                .log_x = true,
                .log_y = true,
                .series = {{.name = "no scale"}, {.name = "1 / sqrt(d_k)"}, {.name = "1 / d_k"}}};
  bool all = true;
  for (std::int64_t head_dim : {16, 64, 256, 512}) {
    const auto d = static_cast<double>(head_dim);
    struct {
      Scale scale;
      double expected;
      const char* name;
    } const cases[] = {{Scale::none(), d, "no scale"},
                       {Scale::inverse_head_dim(), 1 / d, "1 / d_k"},
                       {Scale::inverse_sqrt_head_dim(), 1, "1 / sqrt(d_k)"}};
    for (std::size_t c = 0; c < 3; ++c) {
      const auto logits = sample_logits(bench, random, count, head_dim, {.logits = {.scale = cases[c].scale}});
      const Interval measured = variance_interval(logits);
      finding.details.push_back(
          {"d_k = " + std::to_string(head_dim) + ", " + cases[c].name, cases[c].expected, measured});
      all &= std::abs(measured.value / cases[c].expected - 1) < 0.06;
      const std::size_t series = c == 0 ? 0 : 3 - c;
      figure.series[series].x.push_back(d);
      figure.series[series].y.push_back(measured.value);
      finding.measured = measured;
    }
  }
  finding.figures.push_back(std::move(figure));
  finding.verdict = all ? Verdict::holds : Verdict::does_not_hold;
  finding.note = all ? "Dividing by c divides the variance by c^2: d_k / sqrt(d_k)^2 = 1, d_k / d_k^2 = 1 / d_k."
                     : "The variances after scaling are not those of q.k divided by the scale.";
  return finding;
}

}  // namespace rootdk::lab
