#include <algorithm>
#include <cmath>

#include "lab/claims/claims.h"
#include "lab/probe.h"

namespace rootdk::lab {

Finding shared_projection_symmetry(const Bench& bench) {
  Random random(bench.seed, 11);
  constexpr std::int64_t kTokens = 64, kHeadDim = 32;
  // One projection for both: q = k.
  const Tensor x = random.normal_tensor({1, 1, kTokens, kHeadDim});
  const auto weights = weights_of(bench, x, x, {});
  Tensor lse(DType::f32, {1, 1, kTokens}), out(DType::f32, {1, 1, kTokens, 1});
  const Tensor v(DType::f32, {1, 1, kTokens, 1});
  bench.attend(x, x, v, out, {}, {.lse = lse});
  const std::vector<double> normaliser = doubles(lse);

  // logit = ln p + lse: the scores as the kernel saw them, wherever the weight did not underflow.
  double score_asymmetry = 0, weight_asymmetry = 0, total = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (weights[i][j] > 1e-12 && weights[j][i] > 1e-12) {
        const double there = std::log(weights[i][j]) + normaliser[i], back = std::log(weights[j][i]) + normaliser[j];
        score_asymmetry = std::max(score_asymmetry, std::abs(there - back));
      }
      weight_asymmetry += std::abs(weights[i][j] - weights[j][i]);
      total += weights[i][j] + weights[j][i];
    }
  }
  Finding finding{
      .quantity = "mean |p_ij - p_ji| / mean p, W_Q = W_K", .expected = std::nan(""), .samples = kTokens * kTokens};
  finding.measured = exact(2 * weight_asymmetry / total);
  finding.details = {{"largest |s_ij - s_ji|", 0, exact(score_asymmetry)},
                     {"mean |p_ij - p_ji| / mean p", std::nan(""), finding.measured}};
  std::vector<std::vector<double>> corner;
  for (std::size_t i = 0; i < 16; ++i) corner.emplace_back(weights[i].begin(), weights[i].begin() + 16);
  finding.figures.push_back(
      {.kind = Figure::Kind::heat_map,
       .title = "Weights with W_Q = W_K",
       .x_label = "key",
       .y_label = "query",
       .caption = "The scores are a mirror image about the diagonal; the weights are not, since each row "
                  "is divided by its own sum.",
       .matrix = std::move(corner)});
  const bool as_said = score_asymmetry < 1e-4 && finding.measured.value > 0.2;
  finding.verdict = as_said ? Verdict::holds_with_a_correction : Verdict::does_not_hold;
  finding.note =
      as_said ? "The scores are symmetric (and positive semi-definite); the weights after softmax are not, because "
                "each row has its own denominator."
              : "Scores with one shared projection are not symmetric here.";
  return finding;
}

}  // namespace rootdk::lab
