#include <algorithm>
#include <cmath>
#include <functional>

#include "lab/claims/claims.h"
#include "lab/probe.h"
#include "lab/sentence.h"
#include "lab/timing.h"

namespace rootdk::lab {

Finding additive_is_bounded(const Bench& bench) {
  Random random(bench.seed, 18);
  constexpr std::int64_t kKeys = 64, kHeadDim = 64;
  const std::int64_t rows = bench.samples(512);
  Tensor a = random.normal_tensor({1, kHeadDim});
  double bound = 0;
  for (float value : a.values<float>()) bound += std::abs(value);
  Tensor minus_a(DType::f32, {1, kHeadDim});
  std::transform(a.values<float>().begin(), a.values<float>().end(), minus_a.values<float>().begin(), std::negate<>());
  const AttentionParams additive{.score = Score::additive, .logits = {.scale = Scale::none()}, .additive_v = a};
  AttentionParams negative = additive;
  negative.additive_v = minus_a;

  Finding finding{.quantity = "largest |a . tanh(q + k)| / |a|_1, inputs of size 1 to 1000",
                  .expected = 1,
                  .relation = Relation::at_most,
                  .samples = rows};
  double worst = 0;
  for (double size : {1.0, 10.0, 1000.0}) {
    const Tensor q = random.normal_tensor({1, 1, rows, kHeadDim}, size),
                 k = random.normal_tensor({1, 1, kKeys, kHeadDim}, size);
    const RowSample sample = row_statistics(bench, q, k, additive);
    // The kernel reports the largest logit; the largest of the opposite vector is the smallest one, its sign turned.
    const RowSample opposite = row_statistics(bench, q, k, negative);
    const double largest = std::max(*std::max_element(sample.max_logit.begin(), sample.max_logit.end()),
                                    *std::max_element(opposite.max_logit.begin(), opposite.max_logit.end())) /
                           bound;
    const RowSample dot = row_statistics(bench, q, k, {.logits = {.scale = Scale::none()}});
    finding.details.push_back(
        {"inputs of size " + std::to_string(static_cast<int>(size)) + ": largest |additive score| over |a|_1",
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
  finding.note = holds
                     ? "tanh lies in (-1, 1), so the score never leaves |a|_1, whatever the inputs: here it comes to " +
                           say(worst) +
                           " of it. The price is a tanh for each dimension of each pair, which no matrix unit can "
                           "do: " +
                           say(cost) + " times the time of the dot product."
                     : "The additive score leaves its bound.";
  return finding;
}

}  // namespace rootdk::lab
