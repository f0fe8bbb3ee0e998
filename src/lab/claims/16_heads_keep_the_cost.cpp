#include <algorithm>
#include <cmath>

#include "lab/claims/claims.h"
#include "lab/probe.h"
#include "lab/sentence.h"
#include "lab/timing.h"

namespace rootdk::lab {
namespace {

std::vector<double> in_milliseconds(std::vector<double> seconds) {
  for (double& s : seconds) s *= 1e3;
  return seconds;
}

}  // namespace

Finding heads_keep_the_cost(const Bench& bench) {
  Random random(bench.seed, 16);
  constexpr std::int64_t kModel = 512;
  const std::int64_t n = bench.quick ? 512 : 1024;
  Finding finding{.quantity = "time with 8 heads over time with 2, d_model = 512", .expected = 1, .samples = n};
  Figure figure{
      .title = "Attention time over the number of heads",
      .x_label = "heads",
      .y_label = "ms of processor time",
      .caption =
          "d_model = 512 throughout: heads x d_k is constant, and so are the products. The softmax is computed once a "
          "head.",
      .log_x = true,
      .series = {{.name = "measured"}}};
  const std::vector<std::int64_t> head_counts = {1, 2, 4, 8, 16, 32};
  std::vector<Tensor> queries, keys, outs;
  std::vector<std::function<void()>> bodies;
  for (std::size_t c = 0; c < head_counts.size(); ++c) {
    const std::int64_t heads = head_counts[c], head_dim = kModel / heads;
    queries.push_back(random.normal_tensor({1, heads, n, head_dim}));
    keys.push_back(random.normal_tensor({1, heads, n, head_dim}));
    outs.emplace_back(DType::f32, std::initializer_list<std::int64_t>{1, heads, n, head_dim});
    bodies.push_back([&, c] { bench.attend(queries[c], keys[c], keys[c], outs[c], {}, {}); });
  }
  const auto times = times_in_rounds(bench.quick ? 6 : 12, bodies);
  const double flops = 4.0 * static_cast<double>(n) * static_cast<double>(n) * kModel;
  finding.details.push_back({"GFLOP of the products, any number of heads", flops * 1e-9, not_measured()});
  for (std::size_t c = 0; c < head_counts.size(); ++c) {
    const std::int64_t heads = head_counts[c], head_dim = kModel / heads;
    const Interval milliseconds = median_interval(in_milliseconds(times[c]));
    figure.series[0].x.push_back(static_cast<double>(heads));
    figure.series[0].y.push_back(milliseconds.value);
    finding.details.push_back({std::to_string(heads) + " heads of " + std::to_string(head_dim) + ": milliseconds",
                               std::nan(""), milliseconds});
  }
  finding.details.push_back({"BERT-base: 768 / 12", 768.0 / 12, not_measured()});
  finding.details.push_back({"GPT-3: 12288 / 96", 12288.0 / 96, not_measured()});
  const Interval many = time_ratio(times[5], times[1]);
  finding.details.push_back({"time with 32 heads over time with 2", 1, many});
  finding.measured = time_ratio(times[3], times[1]);
  finding.figures.push_back(std::move(figure));
  const bool as_said = finding.measured.value > 0.6 && finding.measured.value < 1.7;
  finding.verdict = as_said ? Verdict::holds_with_a_correction : Verdict::does_not_hold;
  finding.note = as_said
                     ? "The products cost the same however they are cut: 8 heads take " + say(finding.measured.value) +
                           " times as long as 2. The n x n exponentials come once a head, so many small heads cost "
                           "more: 32 take " +
                           say(many.value) + " times as long as 2."
                     : "The time depends on the number of heads far more than the products do.";
  return finding;
}

}  // namespace rootdk::lab
