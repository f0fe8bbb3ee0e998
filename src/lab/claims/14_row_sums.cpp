#include <algorithm>
#include <cmath>

#include "lab/claims/claims.h"
#include "lab/probe.h"

namespace rootdk::lab {

Finding rows_sum_to_one(const Bench& bench) {
  Random random(bench.seed, 14);
  constexpr std::int64_t kTokens = 128, kHeadDim = 64;
  const Tensor q = random.normal_tensor({1, 1, kTokens, kHeadDim}), k = random.normal_tensor({1, 1, kTokens, kHeadDim});
  // Values of one turn the output into the row sum.
  Tensor ones(DType::f32, {1, 1, kTokens, 1}), sums(DType::f32, {1, 1, kTokens, 1});
  for (float& value : ones.values<float>()) value = 1;
  Tensor mass(DType::f32, {1, 1, kTokens}), causal_mass(DType::f32, {1, 1, kTokens});
  bench.attend(q, k, ones, sums, {}, {.column_mass = mass});
  double worst = 0;
  for (double sum : doubles(sums)) worst = std::max(worst, std::abs(sum - 1));
  const std::vector<double> columns = doubles(mass);
  bench.attend(q, k, ones, sums, {.causal = true}, {.column_mass = causal_mass});
  const std::vector<double> causal_columns = doubles(causal_mass);
  // With a sink of logit 5 a share of every row goes nowhere.
  Tensor sink(DType::f32, {1});
  sink.values<float>()[0] = 5;
  bench.attend(q, k, ones, sums, {.logits = {.sinks = sink}}, {});
  const double with_sink = mean(doubles(sums));

  Finding finding{.quantity = "largest |row sum - 1|", .expected = 0, .samples = kTokens};
  finding.measured = exact(worst);
  const auto [least, most] = std::minmax_element(columns.begin(), columns.end());
  finding.details = {{"largest |row sum - 1|", 0, exact(worst)},
                     {"smallest column sum", std::nan(""), exact(*least)},
                     {"largest column sum", std::nan(""), exact(*most)},
                     {"column sum of key 0 under a causal mask", std::nan(""), exact(causal_columns[0])},
                     {"mean row sum with a sink of logit 5", std::nan(""), exact(with_sink)}};
  Figure figure{.title = "Column sums",
                .x_label = "key",
                .y_label = "weight received",
                .caption =
                    "Every row gives 1 in all; what a key receives is its own matter. Under a causal mask early keys "
                    "have more rows to receive from.",
                .series = {{.name = "full"}, {.name = "causal"}}};
  for (std::size_t j = 0; j < columns.size(); ++j) {
    figure.series[0].x.push_back(static_cast<double>(j));
    figure.series[0].y.push_back(columns[j]);
    figure.series[1].x.push_back(static_cast<double>(j));
    figure.series[1].y.push_back(causal_columns[j]);
  }
  finding.figures.push_back(std::move(figure));
  const bool holds = worst < 1e-5 && *most > 1.2 && *least < 0.8 && with_sink < 0.9;
  finding.verdict = holds ? Verdict::holds : Verdict::does_not_hold;
  finding.note =
      holds ? "Softmax divides each row by its own sum. With a sink in the denominator rows sum to less than 1: the "
              "rest is attention paid to nothing."
            : "Row sums are not 1, or column sums are.";
  return finding;
}

}  // namespace rootdk::lab
