#include <algorithm>
#include <cmath>

#include "lab/claims/claims.h"
#include "lab/probe.h"
#include "lab/sentence.h"
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

MultiHeadAttention random_layer(Random& random) {
  MultiHeadAttention layer({.d_model = kModel, .heads = kHeads, .causal = true});
  Parameters parameters;
  layer.collect(parameters, "layer");
  for (const Parameter& parameter : parameters) {
    for (float& w : parameter.value->value().values<float>())
      w = static_cast<float>(random.normal() / std::sqrt(double{kModel}));
  }
  return layer;
}

struct Measurements {
  std::vector<double> positions, cached_seconds, plain_seconds;
  double largest_difference = 0;  // between cached and recomputed outputs
};

// Token after token through the cache; at powers of two both ways are timed.
Measurements measure(const MultiHeadAttention& layer, const Tensor& x) {
  const std::int64_t length = x.size(0);
  Context context{};
  const Value whole = layer(context, rows_of(x, 0, length), {});
  KvCache cache({.dtype = DType::f32, .kv_heads = kHeads, .head_dim = kModel / kHeads, .pages = length / 64 + 1});
  const KvStep one{.sequence = cache.open()};
  const AttentionInput behind_the_cache{.cached = {.cache = &cache, .steps = {&one, 1}}};
  Measurements m;
  for (std::int64_t i = 0; i < length; ++i) {
    const Value step = layer(context, rows_of(x, i, i + 1), behind_the_cache);
    for (std::int64_t d = 0; d < kModel; ++d) {
      const double difference = double{step->data()[d]} - whole->data()[i * kModel + d];
      m.largest_difference = std::max(m.largest_difference, std::abs(difference));
    }
    const std::int64_t position = i + 1;
    if (position < 64 || (position & (position - 1)) != 0) continue;
    // Once more at the same position, for the clock; the cache is put back each time.
    m.cached_seconds.push_back(best_seconds(5, [&] {
      cache.trim(one.sequence, i);
      layer(context, rows_of(x, i, i + 1), behind_the_cache);
    }));
    m.plain_seconds.push_back(best_seconds(3, [&] { layer(context, rows_of(x, 0, position), {}); }));
    m.positions.push_back(static_cast<double>(position));
  }
  return m;
}

Figure cost_of_a_token(const Measurements& m) {
  Figure figure{
      .title = "Cost of one more token",
      .x_label = "position",
      .y_label = "ms of processor time",
      .caption =
          "One attention layer, d_model = 256. With a cache a step projects one token and attends to the cached keys; "
          "without, it starts over.",
      .log_x = true,
      .log_y = true,
      .series = {{.name = "with the cache", .x = m.positions}, {.name = "recomputing", .x = m.positions}}};
  for (double s : m.cached_seconds) figure.series[0].y.push_back(s * 1e3);
  for (double s : m.plain_seconds) figure.series[1].y.push_back(s * 1e3);
  return figure;
}

}  // namespace

Finding kv_cache_avoids_recomputing(const Bench& bench) {
  Random random(bench.seed, 21);
  const std::int64_t length = bench.quick ? 512 : 1024;
  const MultiHeadAttention layer = random_layer(random);
  const Measurements m = measure(layer, random.normal_tensor({length, kModel}));
  const Interval cached = power_law_exponent(m.positions, m.cached_seconds),
                 plain = power_law_exponent(m.positions, m.plain_seconds);
  const double gain = m.plain_seconds.back() / m.cached_seconds.back();
  const double cached_growth = m.cached_seconds.back() / m.cached_seconds.front(),
               plain_growth = m.plain_seconds.back() / m.plain_seconds.front();
  const std::string stretch =
      "from position " + say(m.positions.front(), 2) + " to " + std::to_string(static_cast<int>(m.positions.back()));
  Finding finding{
      .quantity = "largest difference between cached and recomputed outputs", .expected = 0, .samples = length};
  finding.measured = exact(m.largest_difference);
  finding.details = {{"exponent of a cached step over position", std::nan(""), cached},
                     {"exponent of a recomputed step over position", 1, plain},
                     {"growth of a cached step " + stretch, std::nan(""), exact(cached_growth)},
                     {"growth of a recomputed step " + stretch, std::nan(""), exact(plain_growth)},
                     {"recomputed over cached at the last position", std::nan(""), exact(gain)}};
  finding.figures.push_back(cost_of_a_token(m));
  const bool holds = m.largest_difference < 1e-4 && cached.value + 0.3 < plain.value && gain > 3;
  finding.verdict = holds ? Verdict::holds : Verdict::does_not_hold;
  finding.note =
      holds ? "Token for token the same. A cached step projects one token and attends to all keys so far, so "
              "it grows too: " +
                  say(cached_growth) + " times " + stretch + ", where a recomputed one grows " + say(plain_growth) +
                  " times. At the last position recomputing takes " + say(gain) + " times as long."
            : "The cache changes the result, or does not pay.";
  finding.setup = "one attention layer, d_model = 256, 4 heads, causal";
  return finding;
}

}  // namespace rootdk::lab
