#include <cmath>
#include <numbers>

#include "lab/claims/claims.h"
#include "lab/probe.h"

namespace rootdk::lab {

Finding entropy_under_scales(const Bench& bench) {
  Random random(bench.seed, 6);
  constexpr std::int64_t kKeys = 1024, kHeadDim = 64;
  const double n = kKeys, d = kHeadDim;
  const std::int64_t rows = bench.samples(2048);
  struct {
    const char* name;
    AttentionParams params;
    double entropy, sum_p2;
  } const cases[] = {
      // For logits of variance 1, E e^x = e^(1/2) and E e^2x = e^2: entropy ln n - 1/2, sum p^2 e / n.
      {"1 / sqrt(d_k)", {}, std::log(n) - 0.5, std::numbers::e / n},
      {"1 / d_k", {.logits = {.scale = Scale::inverse_head_dim()}}, std::log(n) - 1 / (2 * d), std::exp(1 / d) / n},
      {"cosine",
       {.score = Score::cosine, .logits = {.scale = Scale::none()}},
       std::log(n) - 1 / (2 * d),
       std::exp(1 / d) / n},
  };
  Finding finding{
      .quantity = "mean entropy with 1 / sqrt(d_k), 1024 keys", .expected = cases[0].entropy, .samples = rows};
  Figure figure{.kind = Figure::Kind::bars,
                .title = "Effective keys of a row, of 1024",
                .x_label = "scale",
                .y_label = "e^entropy",
                .caption = "d_k = 64, random q and k.",
                .series = {{.name = "effective keys"}}};
  bool all = true;
  for (const auto& c : cases) {
    const RowSample sample = sample_rows(bench, random, {rows, kKeys, kHeadDim}, c.params);
    const Interval entropy = sample.mean_of(sample.entropy), sum_p2 = sample.mean_of(sample.sum_p2);
    finding.details.push_back({std::string(c.name) + ": entropy", c.entropy, entropy});
    finding.details.push_back({std::string(c.name) + ": sum p^2", c.sum_p2, sum_p2});
    finding.details.push_back({std::string(c.name) + ": share over 0.9", 0, exact(sample.share_over(0.9))});
    all &= std::abs(entropy.value - c.entropy) < 0.03 && sample.share_over(0.9) == 0;
    if (&c == cases) finding.measured = entropy;
    figure.series[0].x.push_back(static_cast<double>(figure.column_labels.size()));
    figure.series[0].y.push_back(std::exp(entropy.value));
    figure.column_labels.push_back(c.name);
  }
  finding.figures.push_back(std::move(figure));
  finding.verdict = all ? Verdict::holds : Verdict::does_not_hold;
  finding.note =
      all ? "With 1 / sqrt(d_k) a row gives up half a nat of ln n whatever d_k is; with 1 / d_k and cosine it gives "
            "up 1 / (2 d_k), next to nothing: all keys get nearly the same weight."
          : "The entropies are not those of normal logits with these variances.";
  finding.setup = "d_k = 64, random q and k";
  return finding;
}

}  // namespace rootdk::lab
