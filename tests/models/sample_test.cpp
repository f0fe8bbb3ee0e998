// sample() puts only a few tokens in order; what it draws is what a full sort would give.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "models/generate.h"
#include "rootdk/dropout.h"

namespace rootdk {
namespace {

// The definition: all tokens by logit, of equal ones the lowest id first.
std::int32_t by_full_sort(const std::vector<float>& logits, const SamplingParams& params, std::uint64_t step) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  if (params.greedy) return order[0];
  if (params.top_k > 0) order.resize(std::min(order.size(), static_cast<std::size_t>(params.top_k)));
  std::vector<double> weights;
  for (const std::int32_t id : order) {
    const double below = static_cast<double>(logits[static_cast<std::size_t>(id)]) -
                         static_cast<double>(logits[static_cast<std::size_t>(order[0])]);
    weights.push_back(std::exp(below / params.temperature));
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  double kept = 0;
  std::size_t count = 0;
  while (count < weights.size() && (count == 0 || kept < params.top_p * sum)) kept += weights[count++];
  const PhiloxWords words =
      philox4x32_10({static_cast<std::uint32_t>(step), static_cast<std::uint32_t>(step >> 32), 0u, 2u}, params.seed);
  double rest = kept * (words[0] * 0x1p-32 + words[1] * 0x1p-64);
  for (std::size_t i = 0; i < count; ++i) {
    rest -= weights[i];
    if (rest < 0) return order[i];
  }
  return order[count - 1];
}

std::vector<float> some_logits(std::size_t count, double deviation, bool coarse, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, deviation);
  std::vector<float> logits(count);
  for (float& x : logits) x = static_cast<float>(coarse ? std::round(normal(random)) : normal(random));
  return logits;
}

TEST(Sample, DrawsWhatAFullSortDraws) {
  const SamplingParams params[] = {{},
                                   {.greedy = false, .seed = 1},
                                   {.greedy = false, .temperature = 0.7, .top_k = 40, .seed = 2},
                                   {.greedy = false, .top_k = 1000000, .seed = 3},
                                   {.greedy = false, .top_p = 0.9, .seed = 4},
                                   {.greedy = false, .temperature = 3, .top_p = 0.999, .seed = 5},
                                   {.greedy = false, .top_k = 100, .top_p = 0.5, .seed = 6},
                                   {.greedy = false, .top_p = 1e-9, .seed = 7}};
  for (const std::size_t count : {1, 2, 63, 64, 65, 700, 5000}) {
    for (const bool coarse : {false, true}) {  // coarse: many equal logits
      for (const double deviation : {0.0, 1.0, 4.0}) {
        std::vector<float> logits = some_logits(count, deviation, coarse, static_cast<unsigned>(count));
        if (count > 2) logits[1] = -std::numeric_limits<float>::infinity();
        for (const SamplingParams& p : params) {
          for (std::uint64_t step = 0; step < 12; ++step) {
            ASSERT_EQ(sample(logits, p, step), by_full_sort(logits, p, step))
                << count << " tokens, deviation " << deviation << ", coarse " << coarse << ", seed " << p.seed;
          }
        }
      }
    }
  }
}

TEST(Sample, TheLowestIdWhereNoTokenCanCome) {
  const std::vector<float> none(5, -std::numeric_limits<float>::infinity());
  for (const bool greedy : {true, false}) EXPECT_EQ(sample(none, {.greedy = greedy, .seed = 3}, 0), 0);
}

}  // namespace
}  // namespace rootdk
