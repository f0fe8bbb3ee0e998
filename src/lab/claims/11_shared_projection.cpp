#include <algorithm>
#include <cmath>

#include "lab/claims/claims.h"
#include "lab/probe.h"
#include "lab/sentence.h"

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
  const auto score = [&](std::size_t i, std::size_t j) { return std::log(weights[i][j]) + normaliser[i]; };
  for (std::size_t i = 0; i < weights.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (weights[i][j] > 1e-12 && weights[j][i] > 1e-12) {
        score_asymmetry = std::max(score_asymmetry, std::abs(score(i, j) - score(j, i)));
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
  constexpr std::size_t kCorner = 16;
  std::vector<std::vector<double>> weight_corner, score_corner;
  for (std::size_t i = 0; i < kCorner; ++i) {
    weight_corner.emplace_back(weights[i].begin(), weights[i].begin() + kCorner);
    auto& row = score_corner.emplace_back();
    for (std::size_t j = 0; j < kCorner; ++j) row.push_back(score(i, j));
  }
  finding.figures.push_back({.kind = Figure::Kind::heat_map,
                             .title = "Scores with W_Q = W_K",
                             .x_label = "key",
                             .y_label = "query",
                             .caption = "q.k / sqrt(d_k) of the first 16 tokens: a mirror image about the diagonal.",
                             .matrix = std::move(score_corner)});
  finding.figures.push_back({.kind = Figure::Kind::heat_map,
                             .title = "Weights with W_Q = W_K",
                             .x_label = "key",
                             .y_label = "query",
                             .caption =
                                 "Of the same tokens: no mirror image, since each row is divided by its own sum. The "
                                 "shade is the square root of the weight.",
                             .matrix = std::move(weight_corner),
                             .full_colour = 1,
                             .root_shade = true});
  const bool as_said = score_asymmetry < 1e-4 && finding.measured.value > 0.2;
  finding.verdict = as_said ? Verdict::holds_with_a_correction : Verdict::does_not_hold;
  finding.note =
      as_said ? "The scores are symmetric (and positive semi-definite); the weights after softmax are not, because "
                "each row has its own denominator: the mean |p_ij - p_ji| is " +
                    say(finding.measured.value) + " of the mean weight."
              : "Scores with one shared projection are not symmetric here.";
  finding.setup = "64 tokens, d_k = 32; the figures show the first 16 tokens";
  return finding;
}

}  // namespace rootdk::lab
