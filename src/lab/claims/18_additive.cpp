#include <algorithm>
#include <cmath>

#include "lab/claims/claims.h"
#include "lab/probe.h"
#include "lab/timing.h"

namespace rootdk::lab {

Finding additive_is_bounded(const Bench& bench) {
  Random random(bench.seed, 18);
  constexpr std::int64_t kKeys = 64, kHeadDim = 64;
  const std::int64_t rows = bench.samples(512);
  Tensor a = random.normal_tensor({1, kHeadDim});
  double bound = 0;
  for (float value : a.values<float>()) bound += std::abs(value);
  const AttentionParams additive{.score = Score::additive, .logits = {.scale = Scale::none()}, .additive_v = a};

  Finding finding{.quantity = "largest |a . tanh(q + k)| / |a|_1 with inputs of size 1000",
                  .expected = 1,
                  .relation = Relation::at_most,
                  .samples = rows};
  double worst = 0;
  for (double size : {1.0, 10.0, 1000.0}) {
    const Tensor q = random.normal_tensor({1, 1, rows, kHeadDim}, size),
                 k = random.normal_tensor({1, 1, kKeys, kHeadDim}, size);
    const RowSample sample = row_statistics(bench, q, k, additive);
    const double largest = *std::max_element(sample.max_logit.begin(), sample.max_logit.end()) / bound;
    const RowSample dot = row_statistics(bench, q, k, {.logits = {.scale = Scale::none()}});
    finding.details.push_back({"inputs of size " + std::to_string(static_cast<int>(size)) + ": additive, over |a|_1",
                               std::nan(""), exact(largest)});
    finding.details.push_back({"inputs of size " + std::to_string(static_cast<int>(size)) + ": largest dot product",
                               std::nan(""), exact(*std::max_element(dot.max_logit.begin(), dot.max_logit.end()))});
    worst = std::max(worst, largest);
  }
  finding.measured = exact(worst);

  const Tensor q = random.normal_tensor({1, 1, 256, kHeadDim}), k = random.normal_tensor({1, 1, 256, kHeadDim});
  const Tensor v = random.normal_tensor({1, 1, 256, kHeadDim});
  Tensor out(DType::f32, {1, 1, 256, kHeadDim});
  const double cost = best_seconds(5, [&] { bench.attend(q, k, v, out, additive, {}); }) /
                      best_seconds(5, [&] { bench.attend(q, k, v, out, {}, {}); });
  finding.details.push_back({"time of additive over dot product, 256 x 256, d_k = 64", std::nan(""), exact(cost)});
  const bool holds = worst <= 1 + 1e-5 && worst > 0.05;
  finding.verdict = holds ? Verdict::holds : Verdict::does_not_hold;
  finding.note =
      holds ? "tanh lies in (-1, 1), so the score never leaves |a|_1, whatever the inputs; the price is a tanh a "
              "dimension a pair, which no matrix unit can do."
            : "The additive score leaves its bound.";
  return finding;
}

}  // namespace rootdk::lab
