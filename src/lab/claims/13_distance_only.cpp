#include <algorithm>
#include <cmath>

#include "lab/claims/claims.h"
#include "lab/probe.h"
#include "lab/sentence.h"
#include "rootdk/positions.h"

namespace rootdk::lab {
namespace {

constexpr std::int64_t kTokens = 48, kHeadDim = 64, kWindow = 8;

std::vector<double> rope_logits(const Bench& bench, const Tensor& q, const Tensor& k, std::int64_t shift) {
  Tensor rotated_q(DType::f32, q.shape()), rotated_k(DType::f32, k.shape());
  rope(q, rotated_q, {.offset = shift});
  rope(k, rotated_k, {.offset = shift});
  Tensor out(DType::f32, {1, 1, kTokens, 1}), lse(DType::f32, {1, 1, kTokens});
  Tensor weights(DType::f32, {1, 1, kTokens, kTokens});
  const Tensor v(DType::f32, {1, 1, kTokens, 1});
  bench.attend(rotated_q, rotated_k, v, out, {}, {.lse = lse, .weights = weights});
  std::vector<double> logits = doubles(weights);
  // logit = ln p + lse
  for (std::size_t i = 0; i < logits.size(); ++i) {
    logits[i] = std::log(logits[i]) + lse.values<float>()[i / static_cast<std::size_t>(kTokens)];
  }
  return logits;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(a[i] - b[i]));
  return worst;
}

// The most that an implementation gets wrong that keeps angles in float32, over 1000 positions from this one on, in
// radians.
double float32_angle_error(std::int64_t position) {
  Tensor frequencies(DType::f64, {kHeadDim / 2});
  rope_frequencies(frequencies, kHeadDim);
  double worst = 0;
  for (std::int64_t at = position; at < position + 1000; ++at) {
    for (double frequency : frequencies.values<double>()) {
      const float in_float = static_cast<float>(at) * static_cast<float>(frequency);
      worst = std::max(worst, std::abs(double{in_float} - static_cast<double>(at) * frequency));
    }
  }
  return worst;
}

// ALiBi and T5 depend on i - j by construction: the same window of keys gives the same weights 100 positions later.
double bias_shift_error(const Bench& bench, const Tensor& q, const Tensor& k, const AttentionParams& params) {
  Tensor later(DType::f32, {1, 1, kTokens + 100, kHeadDim});
  std::copy(k.values<float>().begin(), k.values<float>().end(),
            later.values<float>().end() - static_cast<std::ptrdiff_t>(k.values<float>().size()));
  AttentionParams windowed = params;
  windowed.causal = true;
  windowed.window_left = kWindow;
  const auto near = weights_of(bench, q, k, windowed), far = weights_of(bench, q, later, windowed);
  double worst = 0;
  for (std::size_t i = kWindow; i < near.size(); ++i) {
    for (std::size_t j = 0; j < near[i].size(); ++j) worst = std::max(worst, std::abs(near[i][j] - far[i][j + 100]));
  }
  return worst;
}

}  // namespace

Finding positions_see_distance(const Bench& bench) {
  Random random(bench.seed, 13);
  const Tensor q = random.normal_tensor({1, 1, kTokens, kHeadDim}), k = random.normal_tensor({1, 1, kTokens, kHeadDim});
  const std::vector<double> here = rope_logits(bench, q, k, 0);
  Finding finding{.quantity = "largest change of a RoPE logit when both positions move by 1000",
                  .expected = 0,
                  .samples = kTokens * kTokens};
  finding.measured = exact(largest_difference(here, rope_logits(bench, q, k, 1000)));
  const double far = largest_difference(here, rope_logits(bench, q, k, 1000000));

  Tensor slopes(DType::f32, {1}), t5_weights = random.normal_tensor({32, 1}), table(DType::f32, {1, 257});
  alibi_slopes(slopes);
  t5_relative_table(t5_weights, table);
  const double alibi = bias_shift_error(bench, q, k, {.logits = {.alibi_slopes = slopes}});
  const double t5 = bias_shift_error(bench, q, k, {.logits = {.relative_table = table, .relative_zero = 128}});
  const double angle = float32_angle_error(1000000);
  finding.details = {
      {"RoPE, both positions + 1000: change of a logit", 0, finding.measured},
      {"RoPE, both positions + 1000000: change of a logit", 0, exact(far)},
      {"ALiBi, 100 keys before the window: change of a weight", 0, exact(alibi)},
      {"T5 bias, 100 keys before the window: change of a weight", 0, exact(t5)},
      {"largest error of an angle kept in float32, positions 1000000 to 1000999, radians", std::nan(""), exact(angle)}};
  const bool holds = finding.measured.value < 1e-4 && far < 1e-3 && alibi < 1e-6 && t5 < 1e-6;
  finding.verdict = holds ? Verdict::holds : Verdict::does_not_hold;
  finding.note =
      holds
          ? "Scores depend on i - j alone. Angles kept in float32 are off by up to " + say(angle) +
                " rad from position 1000000 on; here they are computed in double, and moving both positions by 1000000 "
                "changes a logit by " +
                say(far) + " at most."
          : "Moving both positions changes the scores.";
  return finding;
}

}  // namespace rootdk::lab
