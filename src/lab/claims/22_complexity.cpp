#include <cmath>

#include "lab/claims/claims.h"
#include "lab/probe.h"
#include "lab/sentence.h"
#include "lab/timing.h"
#include "layers/feed_forward.h"

namespace rootdk::lab {

namespace {

constexpr std::int64_t kModel = 128, kHeads = 2, kHeadDim = kModel / kHeads;

struct Measurements {
  std::vector<double> n, attention_seconds, feed_forward_seconds;
};

Measurements measure(const Bench& bench, const std::vector<std::int64_t>& lengths) {
  Random random(bench.seed, 22);
  FeedForward feed_forward({.d_model = kModel, .d_ff = 4 * kModel});
  Parameters parameters;
  feed_forward.collect(parameters, "ff");
  for (const Parameter& parameter : parameters) {
    for (float& w : parameter.value->value().values<float>()) w = static_cast<float>(random.normal() * 0.05);
  }
  Measurements m;
  std::vector<Tensor> queries, keys, outs;    // of each length
  std::vector<std::function<void()>> bodies;  // attention and feed-forward of each length
  Context context{};
  for (std::int64_t length : lengths) {
    m.n.push_back(static_cast<double>(length));
    queries.push_back(random.normal_tensor({1, kHeads, length, kHeadDim}));
    keys.push_back(random.normal_tensor({1, kHeads, length, kHeadDim}));
    outs.emplace_back(DType::f32, std::initializer_list<std::int64_t>{1, kHeads, length, kHeadDim});
    bodies.push_back([&, i = m.n.size() - 1] { bench.attend(queries[i], keys[i], keys[i], outs[i], {}, {}); });
    const Value x = make_value({length, kModel});
    for (float& value : x->value().values<float>()) value = static_cast<float>(random.normal());
    bodies.push_back([&context, &feed_forward, x] { feed_forward(context, x); });
  }
  const std::vector<double> seconds = best_of_rounds(bench.quick ? 4 : 5, bodies);
  for (std::size_t i = 0; i < seconds.size(); i += 2) {
    m.attention_seconds.push_back(seconds[i]);
    m.feed_forward_seconds.push_back(seconds[i + 1]);
  }
  return m;
}

Figure times_over_n(const Measurements& m) {
  Figure figure{.title = "Attention and feed-forward over n",
                .x_label = "n",
                .y_label = "ms of processor time",
                .caption = "d_model = 128, two heads, feed-forward of 4 d_model.",
                .log_x = true,
                .log_y = true,
                .series = {{.name = "attention", .x = m.n}, {.name = "feed-forward", .x = m.n}}};
  for (double s : m.attention_seconds) figure.series[0].y.push_back(s * 1e3);
  for (double s : m.feed_forward_seconds) figure.series[1].y.push_back(s * 1e3);
  return figure;
}

// The exponent over the lengths from 1024 on: below, fixed costs show.
Interval long_exponent(const Measurements& m, const std::vector<double>& seconds) {
  std::vector<double> n, y;
  for (std::size_t i = 0; i < m.n.size(); ++i) {
    if (m.n[i] < 1024) continue;
    n.push_back(m.n[i]);
    y.push_back(seconds[i]);
  }
  return power_law_exponent(n, y);
}

// The n where both take as long, between the two measured lengths where the order turns; NaN where it does not.
double crossing(const Measurements& m) {
  const auto lead = [&](std::size_t i) { return std::log(m.attention_seconds[i] / m.feed_forward_seconds[i]); };
  for (std::size_t i = 1; i < m.n.size(); ++i) {
    if (lead(i - 1) > 0 || lead(i) <= 0) continue;
    const double share = lead(i - 1) / (lead(i - 1) - lead(i));
    return std::exp(std::log(m.n[i - 1]) + share * std::log(m.n[i] / m.n[i - 1]));
  }
  return std::nan("");
}

}  // namespace

Finding quadratic_and_linear(const Bench& bench) {
  std::vector<std::int64_t> lengths = {128, 256, 512, 1024, 2048, 4096};
  if (!bench.quick) lengths.push_back(8192);
  const Measurements m = measure(bench, lengths);
  const Interval attention = long_exponent(m, m.attention_seconds),
                 feed_forward = long_exponent(m, m.feed_forward_seconds);
  // Products alone: 4 n^2 d against 16 n d^2 meet at n = 4 d_model.
  const double by_operations = 4.0 * kModel, by_time = crossing(m);
  Finding finding{
      .quantity = "exponent of attention time over n", .expected = 2, .measured = attention, .samples = lengths.back()};
  finding.details = {{"attention: exponent from n = 1024 on", 2, attention},
                     {"feed-forward: exponent from n = 1024 on", 1, feed_forward},
                     {"n where the products cost the same, 4 d_model, d_model = 128", by_operations, not_measured()},
                     {"n where the measured times cross", std::nan(""), exact(by_time)}};
  finding.figures.push_back(times_over_n(m));
  const bool holds = std::abs(attention.value - 2) < 0.35 && std::abs(feed_forward.value - 1) < 0.35;
  finding.verdict = holds ? Verdict::holds : Verdict::does_not_hold;
  finding.note =
      holds ? "Every query meets every key, and every token meets the feed-forward layer once: the exponents are " +
                  say(attention.value, 3) + " and " + say(feed_forward.value, 3) +
                  ". In operations the two cost the same at n = 512, four times d_model; " +
                  (std::isnan(by_time) ? std::string("in time they do not cross here.")
                                       : "in time they cross at n = " + say(by_time) + " here.")
            : "The times do not grow as n^2 and n.";
  finding.setup = "d_model = 128, two heads, feed-forward of 4 d_model";
  return finding;
}

}  // namespace rootdk::lab
