#pragma once

// Compares the gradients a layer records with finite differences of its forward pass. The loss is sum(weights * output)
// with fixed random weights; differences are central and taken in the f32 forward pass, summed in double.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "layers/tape.h"

namespace rootdk::testing {

inline Value random_value(std::initializer_list<std::int64_t> shape, std::uint32_t seed, float spread = 1.0f) {
  Value value = make_value(shape);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  for (float& x : value->value().values<float>()) x = normal(random);
  return value;
}

inline void fill_random(const Parameters& parameters, std::uint32_t seed, float spread) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  for (const Parameter& parameter : parameters) {
    for (float& x : parameter.value->value().values<float>()) x += normal(random);
  }
}

using Layer = std::function<Value(Context&)>;

struct GradientCheck {
  double step = 4e-3;
  double tolerance = 4e-3;  // of the largest gradient of the same tensor
  int samples = 12;         // elements tried in each tensor
  double dropout = 0.0;
  std::uint64_t seed = 0;
};

inline double weighted_sum(const Value& output, std::span<const float> weights) {
  double sum = 0;
  const std::span<const float> values = std::as_const(output->value()).values<float>();
  for (std::size_t i = 0; i < values.size(); ++i) sum += static_cast<double>(values[i]) * weights[i];
  return sum;
}

// Checks the gradient of every tensor in `inputs`, which the layer reads.
inline void check_gradients(const Layer& layer, const Parameters& inputs, const GradientCheck& check = {}) {
  Tape tape;
  Context context{.tape = &tape, .dropout = check.dropout, .seed = check.seed};
  for (const Parameter& input : inputs) input.value->drop_grad();
  const Value output = layer(context);
  const Value weights = random_value({output->value().elements()}, 77);
  const std::span<const float> w = std::as_const(weights->value()).values<float>();
  output->grad();
  std::copy(w.begin(), w.end(), output->grad_data());
  tape.backward();

  auto loss = [&] {
    Context forward{.dropout = check.dropout, .seed = check.seed};
    return weighted_sum(layer(forward), w);
  };
  std::mt19937 random(5);
  for (const Parameter& input : inputs) {
    std::span<float> x = input.value->value().values<float>();
    const std::span<const float> grad = std::as_const(input.value->grad()).values<float>();
    double largest = 0.05;  // where the true gradient is 0, only rounding remains
    for (const float g : grad) largest = std::max(largest, std::abs(static_cast<double>(g)));
    for (int sample = 0; sample < check.samples; ++sample) {
      const std::size_t i = random() % x.size();
      const float kept = x[i];
      x[i] = kept + static_cast<float>(check.step);
      const double above = loss(), high = x[i];
      x[i] = kept - static_cast<float>(check.step);
      const double below = loss(), low = x[i];
      x[i] = kept;
      const double expected = (above - below) / (high - low);
      EXPECT_NEAR(grad[i], expected, check.tolerance * largest) << input.name << "[" << i << "]";
    }
  }
}

}  // namespace rootdk::testing
