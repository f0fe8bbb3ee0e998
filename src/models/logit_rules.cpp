#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"
#include "models/generate.h"

namespace rootdk {
namespace {

// Each token that the text has counts once, however often it occurs.
void penalise(std::vector<float>& logits, std::span<const std::int32_t> text, double penalty) {
  std::vector<bool> seen(logits.size());
  for (const std::int32_t id : text) {
    const auto place = static_cast<std::size_t>(id);
    if (id < 0 || place >= logits.size() || seen[place]) continue;
    seen[place] = true;
    logits[place] = static_cast<float>(logits[place] > 0 ? logits[place] / penalty : logits[place] * penalty);
  }
}

void drop_unlikely(std::vector<float>& logits, double min_p, double temperature) {
  const double least = *std::ranges::max_element(logits) + temperature * std::log(min_p);
  for (float& logit : logits) {
    if (logit < least) logit = -std::numeric_limits<float>::infinity();
  }
}

}  // namespace

void check_sampling(const SamplingParams& sampling) {
  require(sampling.greedy || (sampling.temperature > 0 && std::isfinite(sampling.temperature)),
          "generate: temperature ", sampling.temperature, " must be positive and finite");
  require(sampling.top_k >= 0, "generate: top_k ", sampling.top_k, " must not be negative");
  require(sampling.top_p > 0 && sampling.top_p <= 1, "generate: top_p ", sampling.top_p, " must be in (0, 1]");
  require(sampling.min_p >= 0 && sampling.min_p <= 1, "generate: min_p ", sampling.min_p, " must be in [0, 1]");
  require(sampling.repetition_penalty > 0 && std::isfinite(sampling.repetition_penalty),
          "generate: repetition_penalty ", sampling.repetition_penalty, " must be positive and finite");
}

std::int32_t choose_token(std::span<const float> logits, std::span<const std::int32_t> text,
                          const SamplingParams& params, std::uint64_t step) {
  const bool drops = !params.greedy && params.min_p > 0;
  if (params.repetition_penalty == 1.0 && !drops) return sample(logits, params, step);
  require(!logits.empty(), "sample: no logits");
  std::vector<float> changed(logits.begin(), logits.end());
  if (params.repetition_penalty != 1.0) penalise(changed, text, params.repetition_penalty);
  if (drops) drop_unlikely(changed, params.min_p, params.temperature);
  return sample(changed, params, step);
}

}  // namespace rootdk
