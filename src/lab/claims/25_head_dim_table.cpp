#include <cmath>

#include "lab/claims/claims.h"
#include "lab/probe.h"
#include "lab/sentence.h"

namespace rootdk::lab {

Finding small_and_large_head_dim(const Bench& bench) {
  Random random(bench.seed, 25);
  constexpr std::int64_t kKeys = 64;
  const std::int64_t rows = bench.samples(4000);
  Finding finding{.quantity = "mean top weight, scaled, d_k = 1024 over d_k = 64", .expected = 1, .samples = rows};
  Figure figure{.title = "Top weight over d_k",
                .x_label = "d_k",
                .y_label = "mean top weight of 64 keys",
                .caption = "Unscaled, sharpness is a matter of d_k; scaled, it no longer is.",
                .log_x = true,
                .series = {{.name = "no scale"}, {.name = "1 / sqrt(d_k)"}}};
  double small = 0, large = 0, middle_scaled = 0, large_scaled = 0;
  Interval top_at_64, top_at_1024;
  for (std::int64_t head_dim : {2, 4, 8, 16, 32, 64, 128, 256, 512, 1024}) {
    const RowInputs inputs = random_rows(random, {rows, kKeys, head_dim});
    const RowSample unscaled = row_statistics(bench, inputs.q, inputs.k, {.logits = {.scale = Scale::none()}});
    const RowSample scaled = row_statistics(bench, inputs.q, inputs.k, {});
    const double top = mean(unscaled.max_weight), scaled_top = mean(scaled.max_weight);
    figure.series[0].x.push_back(static_cast<double>(head_dim));
    figure.series[0].y.push_back(top);
    figure.series[1].x.push_back(static_cast<double>(head_dim));
    figure.series[1].y.push_back(scaled_top);
    const std::string at = "d_k = " + std::to_string(head_dim);
    finding.details.push_back({at + ", no scale: top weight", std::nan(""), unscaled.mean_of(unscaled.max_weight)});
    finding.details.push_back({at + ", no scale: entropy", std::nan(""), unscaled.mean_of(unscaled.entropy)});
    finding.details.push_back({at + ", 1 / sqrt(d_k): top weight", std::nan(""), scaled.mean_of(scaled.max_weight)});
    finding.details.push_back({at + ", 1 / sqrt(d_k): entropy", std::nan(""), scaled.mean_of(scaled.entropy)});
    if (head_dim == 2) small = top;
    if (head_dim == 64) middle_scaled = scaled_top, top_at_64 = scaled.mean_of(scaled.max_weight);
    if (head_dim == 1024) large = top, large_scaled = scaled_top, top_at_1024 = scaled.mean_of(scaled.max_weight);
  }
  finding.measured = quotient(top_at_1024, top_at_64);
  finding.figures.push_back(std::move(figure));
  // Sixty-four logits of variance 1 give the largest a weight near 0.1: equal at every d_k because all are sharp is
  // wrong.
  const bool as_said =
      small < 0.2 && large > 0.8 && large_scaled < 0.2 && std::abs(large_scaled / middle_scaled - 1) < 0.1;
  finding.verdict = as_said ? Verdict::holds_with_a_correction : Verdict::does_not_hold;
  finding.note =
      as_said ? "So it is without a scale: the top of 64 keys has " + say(small) + " at d_k = 2 and " + say(large) +
                    " at d_k = 1024. With 1 / sqrt(d_k) sharpness no longer depends on d_k: " + say(middle_scaled) +
                    " at d_k = 64 and " + say(large_scaled) + " at d_k = 1024."
              : "Sharpness does not follow d_k as described.";
  return finding;
}

}  // namespace rootdk::lab
