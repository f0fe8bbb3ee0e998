#include <algorithm>
#include <cmath>

#include "lab/claims/claims.h"
#include "lab/probe.h"
#include "lab/sentence.h"
#include "lab/timing.h"

namespace rootdk::lab {

Finding cosine_costs_norms(const Bench& bench) {
  Random random(bench.seed, 24);
  const std::int64_t n = bench.quick ? 512 : 1024;
  // The norms take 4 n d operations beside the 4 n^2 d of the products.
  const double by_operations = 1 + 1 / static_cast<double>(n);
  Finding finding{
      .quantity = "time of cosine over scaled dot product, d_k = 64", .expected = by_operations, .samples = n};
  Figure figure{.kind = Figure::Kind::bars,
                .title = "What the norms cost",
                .x_label = "d_k",
                .y_label = "cosine / scaled dot product",
                .caption = "Fused, four heads, n = " + std::to_string(n) + ". Medians of the time ratio.",
                .series = {{.name = "time ratio"}}};
  finding.details.push_back({"ratio of the operations, n = " + std::to_string(n), by_operations, not_measured()});
  double least = 1e300, most = 0;
  for (std::int64_t head_dim : {32, 64, 128}) {
    const Tensor q = random.normal_tensor({1, 4, n, head_dim}), k = random.normal_tensor({1, 4, n, head_dim});
    Tensor out(DType::f32, {1, 4, n, head_dim});
    const auto times =
        times_in_rounds(bench.quick ? 6 : 12,
                        {[&] { bench.attend(q, k, k, out, {}, {}); },
                         [&] { bench.attend(q, k, k, out, {.score = Score::cosine, .logits = {.scale = 10.0}}, {}); }});
    const Interval ratio = time_ratio(times[1], times[0]);
    least = std::min(least, ratio.value);
    most = std::max(most, ratio.value);
    if (head_dim == 64) finding.measured = ratio;
    finding.details.push_back({"d_k = " + std::to_string(head_dim) + ": time ratio", by_operations, ratio});
    figure.series[0].x.push_back(static_cast<double>(figure.column_labels.size()));
    figure.series[0].y.push_back(ratio.value);
    figure.column_labels.push_back(std::to_string(head_dim));
  }
  finding.figures.push_back(std::move(figure));
  const bool as_said = most < 1.5;
  finding.verdict = as_said ? Verdict::holds_with_a_correction : Verdict::holds;
  finding.note = as_said ? "It needs the norms, yes, but they are linear in n while the scores are quadratic: in "
                           "operations the ratio is " +
                               say(by_operations, 5) + ", in time, fused, it is " + say(least, 3) + " to " +
                               say(most, 3) + " for the three d_k."
                         : "The norms cost real time here: up to " + say(most, 3) + " times that of the dot product.";
  return finding;
}

}  // namespace rootdk::lab
