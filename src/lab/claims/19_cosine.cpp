#include <algorithm>
#include <cmath>

#include "lab/claims/claims.h"
#include "lab/probe.h"
#include "lab/sentence.h"

namespace rootdk::lab {

Finding cosine_is_flat(const Bench& bench) {
  Random random(bench.seed, 19);
  constexpr std::int64_t kHeadDim = 64;
  const std::int64_t rows = bench.samples(2048);
  Finding finding{.quantity = "largest top weight of cosine attention over its bound, 64 keys",
                  .expected = std::nan(""),
                  .samples = rows};
  Figure figure{
      .title = "Cosine attention and its gain",
      .x_label = "gain g",
      .y_label = "top weight",
      .caption = "64 keys, one of them equal to the query: the best case. The bound is 1 / (1 + (n - 1) e^(-2 g)).",
      .log_x = true,
      .series = {{.name = "measured"}, {.name = "bound"}}};
  constexpr std::int64_t kKeys = 64;
  bool all = true;
  double repaired = 0, plain = 0, plain_bound = 0;
  for (double gain : {1.0, 2.0, 5.0, 10.0, 20.0, 50.0}) {
    const Tensor k = random.normal_tensor({1, 1, kKeys, kHeadDim});
    Tensor q(DType::f32, {1, 1, kKeys, kHeadDim});
    std::copy(k.values<float>().begin(), k.values<float>().end(), q.values<float>().begin());
    const RowSample sample = row_statistics(bench, q, k, {.score = Score::cosine, .logits = {.scale = gain}});
    const double top = *std::max_element(sample.max_weight.begin(), sample.max_weight.end());
    const double bound = 1 / (1 + (kKeys - 1) * std::exp(-2 * gain));
    figure.series[0].x.push_back(gain);
    figure.series[0].y.push_back(mean(sample.max_weight));
    figure.series[1].x.push_back(gain);
    figure.series[1].y.push_back(bound);
    finding.details.push_back(
        {"gain " + std::to_string(static_cast<int>(gain)) + ": top weight, at most", bound, exact(top)});
    all &= top <= bound * (1 + 1e-5);
    if (gain == 1.0) finding.measured = exact(top / bound), plain = top, plain_bound = bound;
    if (gain == 20.0) {
      repaired = mean(sample.max_weight);
      finding.details.push_back({"gain 20: mean top weight", std::nan(""), mean_interval(sample.max_weight)});
    }
  }
  finding.figures.push_back(std::move(figure));
  const bool holds = all && plain < 0.11 && repaired > 0.95;
  finding.verdict = holds ? Verdict::holds : Verdict::does_not_hold;
  finding.note =
      holds ? "A cosine lies in [-1, 1], so even a perfect match among 64 keys gets at most " + say(plain_bound, 3) +
                  " of the weight; a gain (a temperature, learned in practice) lifts the bound: with gain 20 "
                  "the match gets " +
                  say(repaired) + " in the mean."
            : "Cosine attention leaves its bound, or is sharp without a gain.";
  return finding;
}

}  // namespace rootdk::lab
