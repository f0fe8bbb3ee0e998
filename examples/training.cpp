// Gradient descent through attention: queries and keys learn that token i attends to token i - 1 (a "previous token"
// head). Prints the loss and the number of keys that a row attends to (e^entropy) as they fall.

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include <rootdk/rootdk.h>

using namespace rootdk;

constexpr int kLen = 64, kHeadDim = 32, kSteps = 400;
constexpr float kRate = 400.0f;

int main() try {
  // Memory of our own in the order [batch, len, heads, dim]; the library wants [batch, heads, len, dim], and takes any
  // strides.
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  const auto random = [&] {
    std::vector<float> values(kLen * kHeadDim);
    for (float& x : values) x = normal(generator);
    return values;
  };
  const auto view = [](std::vector<float>& values) {
    return TensorView(values.data(), {1, kLen, 1, kHeadDim}).transposed(1, 2);
  };
  std::vector<float> q = random(), k = random(), v = random();
  std::vector<float> out(q.size()), grad_out(q.size()), grad_q(q.size()), grad_k(q.size());
  Tensor lse(DType::f32, {1, 1, kLen}), entropy(DType::f32, {1, 1, kLen});
  const AttentionParams params{.causal = true};

  for (int step = 0; step <= kSteps; ++step) {
    attention(view(q), view(k), view(v), view(out), params, {.lse = lse, .entropy = entropy});

    // loss = mean (out[i] - v[i - 1])^2, over the rows that have a token before them.
    double loss = 0;
    for (std::size_t n = kHeadDim; n < out.size(); ++n) {
      const float error = out[n] - v[n - kHeadDim];
      loss += error * error / static_cast<double>(out.size() - kHeadDim);
      grad_out[n] = 2 * error / static_cast<float>(out.size() - kHeadDim);
    }
    // v is given, not learned: its gradient is not asked for.
    attention_backward({.q = view(q), .k = view(k), .v = view(v), .out = view(out), .lse = lse},
                       {.out = view(grad_out)}, {.q = view(grad_q), .k = view(grad_k)}, params);
    for (std::size_t n = 0; n < q.size(); ++n) {
      q[n] -= kRate * grad_q[n];
      k[n] -= kRate * grad_k[n];
    }

    if (step % 100 == 0) {
      double keys = 0;
      for (const float nats : entropy.values<float>()) keys += std::exp(nats) / kLen;
      std::printf("step %3d  loss %.4f  a row attends to about %4.1f keys\n", step, loss, keys);
    }
  }
} catch (const Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
