// One head over random queries and keys: what the knobs do to scores and weights.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "core/check.h"
#include "lab/sampling.h"
#include "session.h"

namespace rootdk::live {
namespace {

Array array_of(const Tensor& tensor) {
  const auto values = tensor.values<float>();
  return {{tensor.shape().begin(), tensor.shape().end()}, {values.begin(), values.end()}};
}

struct Operands {
  Tensor q, k;          // [1, 1, n, d]
  Tensor additive_v{};  // [1, d]
};

// The scaled score of each pair, before softcap and masks: what the histogram shows against N(0, 1).
Array scores_of(const Operands& operands, const Knobs& knobs, double factor) {
  const std::int64_t n = operands.q.size(2), d = operands.q.size(3);
  const float* q = operands.q.view().as<float>();
  const float* k = operands.k.view().as<float>();
  const float* a = operands.additive_v.defined() ? operands.additive_v.view().as<float>() : nullptr;
  auto dot = [d](const float* x, const float* y) {
    float sums[4] = {};
    std::int64_t i = 0;
    for (; i + 4 <= d; i += 4) {
      for (int lane = 0; lane < 4; ++lane) sums[lane] += x[i + lane] * y[i + lane];
    }
    for (; i < d; ++i) sums[0] += x[i] * y[i];
    return sums[0] + sums[1] + (sums[2] + sums[3]);
  };
  Array scores{{n, n}, {}};
  scores.values.reserve(static_cast<std::size_t>(n * n));
  for (std::int64_t i = 0; i < n; ++i) {
    const float* x = q + i * d;
    for (std::int64_t j = 0; j < n; ++j) {
      const float* y = k + j * d;
      float score = 0;
      if (knobs.score == Score::additive) {
        for (std::int64_t c = 0; c < d; ++c) score += a[c] * std::tanh(x[c] + y[c]);
      } else {
        score = dot(x, y);
        if (knobs.score == Score::cosine) score /= std::sqrt(dot(x, x) * dot(y, y));
      }
      scores.values.push_back(static_cast<float>(score * factor));
    }
  }
  return scores;
}

}  // namespace

Answer synthetic(const Json& request) {
  const Knobs knobs = Knobs::read(request.value("knobs", Json::object()));
  const std::int64_t n = request.value("n", 64), d = request.value("d", 64);
  require(n >= 1 && n <= 512 && d >= 1 && d <= 4096, "live: n ", n, " must be 1 to 512 and d ", d, " 1 to 4096");
  const auto seed = request.value("seed", std::uint64_t{1});
  lab::Random random(seed, 1000);
  Operands operands{random.normal_tensor({1, 1, n, d}), random.normal_tensor({1, 1, n, d})};
  Tensor v(DType::f32, {1, 1, n, n});  // the identity: what comes out are the weights that dropout leaves
  for (std::int64_t i = 0; i < n; ++i) v.values<float>()[static_cast<std::size_t>(i * n + i)] = 1.0f;
  if (knobs.score == Score::additive) {
    operands.additive_v = Tensor(DType::f32, {1, d});
    for (float& x : operands.additive_v.values<float>()) x = 1.0f;
  }
  const double factor = knobs.factor(d, Scale::inverse_sqrt_head_dim()).factor(d);
  AttentionParams params;
  params.score = knobs.score;
  params.logits.scale = factor;
  params.logits.softcap = knobs.softcap;
  params.causal = knobs.causal;
  params.window_left = knobs.window;
  params.dropout = knobs.dropout;
  params.seed = seed;
  params.additive_v = operands.additive_v;
  Tensor dropped(DType::f32, {1, 1, n, n}), weights(DType::f32, {1, 1, n, n});
  Tensor entropy(DType::f32, {1, 1, n}), max_weight(DType::f32, {1, 1, n}), sum_p2(DType::f32, {1, 1, n});
  attention(operands.q, operands.k, v, dropped, params,
            {.max_weight = max_weight, .entropy = entropy, .sum_p2 = sum_p2, .weights = weights});
  Answer answer;
  answer.json["factor"] = factor;
  answer.arrays["weights"] = array_of(weights);
  answer.arrays["dropped"] = array_of(dropped);
  answer.arrays["entropy"] = array_of(entropy);
  answer.arrays["max_weight"] = array_of(max_weight);
  answer.arrays["sum_p2"] = array_of(sum_p2);
  answer.arrays["scores"] = scores_of(operands, knobs, factor);
  if (request.value("operands", false)) {
    answer.arrays["q"] = array_of(operands.q);
    answer.arrays["k"] = array_of(operands.k);
  }
  return answer;
}

Answer forward_time(const Json& request) {
  const std::int64_t heads = request.value("heads", 8), n = request.value("n", 512), d = request.value("d", 64);
  lab::Random random(1, 1001);
  const Tensor q = random.normal_tensor({1, heads, n, d}), k = random.normal_tensor({1, heads, n, d}),
               v = random.normal_tensor({1, heads, n, d});
  Tensor out(DType::f32, {1, heads, n, d});
  double seconds = std::numeric_limits<double>::infinity();  // the best run, behind one that warms up
  for (int run = 0; run <= request.value("repeats", 5); ++run) {
    const auto begin = std::chrono::steady_clock::now();
    attention(q, k, v, out);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    if (run > 0) seconds = std::min(seconds, taken.count());
  }
  const double flops = 4.0 * static_cast<double>(heads * n * n * d);
  Answer answer;
  answer.json = {{"seconds", seconds}, {"gflops", flops / seconds * 1e-9}, {"kernel", explain(q, k, v, out).chosen}};
  return answer;
}

}  // namespace rootdk::live
