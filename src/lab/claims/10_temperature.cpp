#include <cmath>

#include "lab/claims/claims.h"
#include "lab/probe.h"
#include "lab/sentence.h"

namespace rootdk::lab {
namespace {

constexpr std::int64_t kKeys = 64, kHeadDim = 64, kRowsPerSet = 4;

// The largest |dH / d ln(1/tau) + Var_p(s) / tau^2| over rows, the derivative taken by central differences.
double worst_derivative_error(const Bench& bench, const Tensor& q, const Tensor& k, double tau) {
  constexpr double kStep = 1e-2;
  const RowSample hotter = row_statistics(bench, q, k, {.logits = {.temperature = tau * std::exp(kStep)}});
  const RowSample colder = row_statistics(bench, q, k, {.logits = {.temperature = tau * std::exp(-kStep)}});
  const std::int64_t sets = q.size(0), q_len = q.size(2);
  const Tensor v(DType::f32, {sets, 1, kKeys, 1});
  Tensor out(DType::f32, {sets, 1, q_len, 1}), weights(DType::f32, {sets, 1, q_len, kKeys});
  bench.attend(q, k, v, out, {.logits = {.temperature = tau}}, {.weights = weights});
  const std::vector<double> p = doubles(weights);
  double worst = 0;
  for (std::size_t i = 0; i < hotter.entropy.size(); ++i) {
    // ln p = s / tau - lse, so that Var_p(s) / tau^2 is the variance of ln p.
    double first = 0, second = 0;
    for (double w : std::span(p).subspan(i * kKeys, kKeys)) {
      const double log_p = std::log(std::max(w, 1e-300));
      first += w * log_p;
      second += w * log_p * log_p;
    }
    const double derivative = (colder.entropy[i] - hotter.entropy[i]) / (2 * kStep);
    worst = std::max(worst, std::abs(derivative + second - first * first) / std::log(double{kKeys}));
  }
  return worst;
}

}  // namespace

Finding temperature_sharpens(const Bench& bench) {
  Random random(bench.seed, 10);
  const std::int64_t sets = bench.samples(2048), rows = sets * kRowsPerSet;  // each set has its own keys
  const Tensor q = random.normal_tensor({sets, 1, kRowsPerSet, kHeadDim}),
               k = random.normal_tensor({sets, 1, kKeys, kHeadDim});
  Finding finding{.quantity = "mean top weight at temperature 0.1, 64 keys", .samples = rows};
  Figure figure{.title = "What temperature does",
                .x_label = "temperature",
                .y_label = "mean over rows",
                .caption = "64 random keys, logits of variance 1 at temperature 1.",
                .log_x = true,
                .series = {{.name = "top weight"}, {.name = "entropy / ln n"}}};
  const double uniform = std::log(double{kKeys});
  double cold = 0, half = 0, hot = 0;
  for (double tau : {0.01, 0.03, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 100.0}) {
    const RowSample sample = row_statistics(bench, q, k, {.logits = {.temperature = tau}});
    const double top = mean(sample.max_weight), flat = mean(sample.entropy) / uniform;
    figure.series[0].x.push_back(tau);
    figure.series[0].y.push_back(top);
    figure.series[1].x.push_back(tau);
    figure.series[1].y.push_back(flat);
    const Interval measured = sample.mean_of(sample.max_weight);
    if (tau == 0.1) finding.measured = measured, cold = top;
    if (tau == 0.5) half = top;
    if (tau == 2.0) hot = flat;
    finding.details.push_back({"top weight at temperature " + say(tau, 1), std::nan(""), measured});
    if (tau == 2.0)
      finding.details.push_back({"entropy over ln n at temperature 2", std::nan(""),
                                 quotient(sample.mean_of(sample.entropy), exact(uniform))});
  }
  const RowSample frozen = row_statistics(bench, q, k, {.logits = {.temperature = 1e-4}});
  const RowSample melted = row_statistics(bench, q, k, {.logits = {.temperature = 1e4}});
  const double limit_error = std::max(mean(frozen.entropy), std::abs(mean(melted.entropy) - uniform));
  const double derivative_error = worst_derivative_error(bench, q, k, 1.0);
  constexpr double kNearlyOneHot = 0.7;
  finding.expected = kNearlyOneHot;
  finding.relation = Relation::at_least;
  finding.details.push_back({"limits: entropy 0 and ln n, error", 0, exact(limit_error)});
  finding.details.push_back({"dH / d ln(1/tau) = -Var_p(s) / tau^2, relative error", 0, exact(derivative_error)});
  finding.figures.push_back(std::move(figure));
  const bool sharpens =
      cold > kNearlyOneHot && half < 0.6 && hot > 0.95 && limit_error < 1e-2 && derivative_error < 1e-3;
  finding.verdict = sharpens ? Verdict::holds_with_a_correction : Verdict::does_not_hold;
  finding.note = sharpens
                     ? "At 0.1 the top of 64 keys takes " + say(cold) + " of the weight, and at 2 the entropy is " +
                           say(hot) + " of its largest; but at 0.5 the top key has only " + say(half) +
                           ": what counts is the spread of the logits over the temperature."
                     : "Temperature does not act on the rows as it should.";
  return finding;
}

}  // namespace rootdk::lab
