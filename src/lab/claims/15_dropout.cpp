#include <cmath>

#include "lab/claims/claims.h"
#include "lab/probe.h"

namespace rootdk::lab {

Finding dropout_keeps_the_mean(const Bench& bench) {
  Random random(bench.seed, 15);
  constexpr std::int64_t kKeys = 64, kHeadDim = 32;
  constexpr double kRate = 0.25;
  const std::int64_t draws = bench.samples(20000);
  // One and the same row, again and again: the same query in every row, and only the dropout bits differ.
  const Tensor one = random.normal_tensor({1, 1, 1, kHeadDim}), k = random.normal_tensor({1, 1, kKeys, kHeadDim});
  Tensor q(DType::f32, {1, 1, draws, kHeadDim}), v(DType::f32, {1, 1, kKeys, 1}), out(DType::f32, {1, 1, draws, 1});
  for (std::int64_t i = 0; i < draws; ++i) {
    std::copy_n(one.values<float>().begin(), kHeadDim, q.values<float>().begin() + i * kHeadDim);
  }
  for (float& value : v.values<float>()) value = 1;  // the output is the sum of the weights that are kept
  Tensor sum_p2(DType::f32, {1, 1, draws});
  bench.attend(q, k, v, out, {.dropout = kRate, .seed = bench.seed}, {.sum_p2 = sum_p2});
  const std::vector<double> sums = doubles(out);
  const double expected_variance = kRate / (1 - kRate) * doubles(sum_p2)[0];

  Finding finding{.quantity = "mean of the kept weights, summed over a row", .expected = 1, .samples = draws};
  finding.measured = mean_interval(sums);
  const Interval spread = variance_interval(sums);
  finding.details = {{"mean", 1, finding.measured}, {"variance: r / (1 - r) sum p^2", expected_variance, spread}};
  const double mean_error = std::abs(finding.measured.value - 1) / (finding.measured.high - finding.measured.low);
  const bool holds = mean_error < 1 && std::abs(spread.value / expected_variance - 1) < 0.1;
  finding.verdict = holds ? Verdict::holds : Verdict::does_not_hold;
  finding.note =
      holds ? "Kept weights are divided by 1 - r, so the mean stays; a single row no longer sums to 1, and varies with "
              "variance r / (1 - r) sum p^2: the sharper the row, the more."
            : "Dropout shifts the mean of the weights.";
  return finding;
}

}  // namespace rootdk::lab
