#pragma once

// Text generation, one token after another.

#include <functional>
#include <memory>
#include <optional>

#include "models/transformer.h"

namespace rootdk {

struct SamplingParams {
  bool greedy = true;  // the largest logit; of equal ones the lowest id
  double temperature = 1.0;
  std::int64_t top_k = 0;  // the k largest alone; 0: all
  double top_p = 1.0;      // the smallest set of largest weights that reaches p; 1: all
  std::uint64_t seed = 0;
};

// Picks the next token. step makes each draw of a generation its own.
std::int32_t sample(std::span<const float> logits, const SamplingParams& params, std::uint64_t step);

struct GenerateParams {
  std::int64_t max_new = 64;
  SamplingParams sampling{};
  bool stop_at_end = true;  // false: end tokens are tokens like others
  bool cache = true;        // false: computes the whole sequence anew for each token
  Executor* executor = nullptr;
};

struct Generation {
  std::vector<std::int32_t> ids;  // prompt and continuation; of an encoder-decoder model the decoder's ids alone
  std::int64_t new_tokens = 0;
  double prompt_seconds = 0;         // up to the first new token
  std::vector<double> step_seconds;  // each further token
  double tokens_per_second() const;  // over all new tokens
};

// A generation that gives one token at a time. Ends at an end token of the config, after max_new tokens, or where the
// model has no more positions. The model outlives it.
class Generator {
 public:
  Generator(const Transformer& model, std::vector<std::int32_t> prompt, const GenerateParams& params);
  ~Generator();
  Generator(Generator&&) noexcept;
  Generator& operator=(Generator&&) = delete;

  // Nothing: the generation has ended. One that throws for want of memory can be called again.
  std::optional<std::int32_t> next();
  const Generation& so_far() const { return result_; }

 private:
  class Stepper;

  const Transformer& model_;
  GenerateParams params_;
  Generation result_;
  std::int64_t limit_ = 0;
  bool ended_ = false;
  std::unique_ptr<Stepper> stepper_;
};

// A whole generation. on_token sees each new token as it comes; returning false ends the generation.
Generation generate(const Transformer& model, std::vector<std::int32_t> prompt, const GenerateParams& params,
                    const std::function<bool(std::int32_t)>& on_token = {});

}  // namespace rootdk
