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
  std::int64_t top_k = 0;           // the k largest alone; 0: all
  double top_p = 1.0;               // the smallest set of largest weights that reaches p; 1: all
  double min_p = 0.0;               // tokens at least this fraction as likely as the likeliest; 0: all
  double repetition_penalty = 1.0;  // divides the positive logits of tokens that are in the text, multiplies the others
  std::uint64_t seed = 0;
};

// Throws rootdk::Error that names the value.
void check_sampling(const SamplingParams& params);

// Picks the next token. step makes each draw of a generation its own. min_p and repetition_penalty are not looked at:
// choose_token() applies them first.
std::int32_t sample(std::span<const float> logits, const SamplingParams& params, std::uint64_t step);

// Picks the token that follows `text`.
std::int32_t choose_token(std::span<const float> logits, std::span<const std::int32_t> text,
                          const SamplingParams& params, std::uint64_t step);

struct GenerateParams {
  std::int64_t max_new = 64;
  SamplingParams sampling{};
  bool stop_at_end = true;            // false: end tokens are tokens like others
  bool cache = true;                  // false: computes the whole sequence anew for each token
  std::optional<DType> cache_type{};  // f32, bf16, f16, i8, f8e4m3; not given: the type of the checkpoint
  // Speculative decoding: a small model of the same vocabulary proposes this many tokens, which the model then checks
  // in one call. The tokens are the same as without it. It outlives the generation, and needs the cache.
  const Transformer* draft = nullptr;
  std::int64_t draft_tokens = 4;
  Executor* executor = nullptr;
};

struct Generation {
  std::vector<std::int32_t> ids;  // prompt and continuation; of an encoder-decoder model the decoder's ids alone
  std::int64_t new_tokens = 0;
  double prompt_seconds = 0;         // up to the first new token
  std::vector<double> step_seconds;  // each further token
  std::int64_t drafted = 0;          // tokens that the draft proposed
  std::int64_t accepted = 0;         // of these
  double tokens_per_second() const;  // over all new tokens
};

// A generation between two tokens: what it has so far, and when it ends. `prompt` is the text to continue, or the
// source of an encoder-decoder model.
class Continuation {
 public:
  Continuation(const Transformer& model, std::span<const std::int32_t> prompt, const GenerateParams& params);

  const std::vector<std::int32_t>& ids() const { return result_.ids; }
  const Generation& result() const { return result_; }
  Generation& result() { return result_; }
  bool ended() const { return ended_ || result_.new_tokens >= limit_; }
  std::int64_t limit() const { return limit_; }  // of new tokens
  // Takes the next token by the logits behind the last one. Where it throws, nothing has changed.
  std::int32_t take(std::span<const float> logits);

 private:
  const TransformerConfig* config_;
  GenerateParams params_;
  Generation result_;
  std::int64_t limit_ = 0;
  bool ended_ = false;
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
  const Generation& so_far() const { return continuation_.result(); }

 private:
  class Stepper;

  Continuation continuation_;
  std::unique_ptr<Stepper> stepper_;
};

// A whole generation. on_token sees each new token as it comes; returning false ends the generation.
Generation generate(const Transformer& model, std::vector<std::int32_t> prompt, const GenerateParams& params,
                    const std::function<bool(std::int32_t)>& on_token = {});

}  // namespace rootdk
