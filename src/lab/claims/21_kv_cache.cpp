#include <algorithm>
#include <cmath>

#include "lab/claims/claims.h"
#include "lab/probe.h"
#include "lab/timing.h"
#include "layers/multi_head_attention.h"

namespace rootdk::lab {
namespace {

constexpr std::int64_t kModel = 256, kHeads = 4;

Value rows_of(const Tensor& x, std::int64_t begin, std::int64_t end) {
  Value value = make_value({end - begin, kModel});
  std::copy_n(x.values<float>().begin() + begin * kModel, (end - begin) * kModel,
              value->value().values<float>().begin());
  return value;
}

}  // namespace

Finding kv_cache_avoids_recomputing(const Bench& bench) {
  Random random(bench.seed, 21);
  const std::int64_t length = bench.quick ? 512 : 1024;
  MultiHeadAttention layer({.d_model = kModel, .heads = kHeads, .causal = true});
  Parameters parameters;
  layer.collect(parameters, "layer");
  for (const Parameter& parameter : parameters) {
    for (float& w : parameter.value->value().values<float>())
      w = static_cast<float>(random.normal() / std::sqrt(double{kModel}));
  }
  const Tensor x = random.normal_tensor({length, kModel});
  Context context{};
  const Value whole = layer(context, rows_of(x, 0, length), {});

  Figure figure{
      .title = "Cost of one more token",
      .x_label = "position",
      .y_label = "ms of processor time",
      .caption =
          "One attention layer, d_model = 256. With a cache a step projects one token and reads the keys; without, it "
          "starts over.",
      .log_x = true,
      .log_y = true,
      .series = {{.name = "with the cache"}, {.name = "recomputing"}}};
  std::vector<double> positions, cached_seconds, plain_seconds;
  double difference = 0;
  LayerCache cache(1, length + 64, layer.config());
  for (std::int64_t i = 0; i < length; ++i) {
    const Value step = layer(context, rows_of(x, i, i + 1), {.cache = &cache});
    for (std::int64_t d = 0; d < kModel; ++d) {
      difference = std::max(difference, std::abs(double{step->data()[d]} - whole->data()[i * kModel + d]));
    }
    const std::int64_t position = i + 1;
    if (position < 64 || (position & (position - 1)) != 0) continue;
    // Once more at the same position, for the clock; the cache is put back each time.
    cached_seconds.push_back(best_seconds(5, [&] {
      cache.truncate(i);
      layer(context, rows_of(x, i, i + 1), {.cache = &cache});
    }));
    plain_seconds.push_back(best_seconds(3, [&] { layer(context, rows_of(x, 0, position), {}); }));
    positions.push_back(static_cast<double>(position));
  }
  figure.series[0].x = figure.series[1].x = positions;
  for (double s : cached_seconds) figure.series[0].y.push_back(s * 1e3);
  for (double s : plain_seconds) figure.series[1].y.push_back(s * 1e3);
  const Interval cached = power_law_exponent(positions, cached_seconds),
                 plain = power_law_exponent(positions, plain_seconds);
  Finding finding{
      .quantity = "largest difference between cached and recomputed outputs", .expected = 0, .samples = length};
  finding.measured = exact(difference);
  finding.details = {{"exponent of a cached step over position", std::nan(""), cached},
                     {"exponent of a recomputed step over position", 1, plain},
                     {"recomputed over cached at the last position", std::nan(""),
                      exact(plain_seconds.back() / cached_seconds.back())}};
  finding.figures.push_back(std::move(figure));
  const bool holds =
      difference < 1e-4 && cached.value + 0.3 < plain.value && plain_seconds.back() > 3 * cached_seconds.back();
  finding.verdict = holds ? Verdict::holds : Verdict::does_not_hold;
  finding.note = holds ? "Token for token the same; a cached step hardly grows with position, a recomputed one grows "
                         "with all that came "
                         "before."
                       : "The cache changes the result, or does not pay.";
  return finding;
}

}  // namespace rootdk::lab
