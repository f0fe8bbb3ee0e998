#include "models/generate.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "core/check.h"

namespace rootdk {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void check_params(const GenerateParams& params) {
  const SamplingParams& sampling = params.sampling;
  require(params.max_new >= 0, "generate: max_new ", params.max_new, " must not be negative");
  require(sampling.greedy || sampling.temperature > 0, "generate: temperature ", sampling.temperature,
          " must be positive");
  require(sampling.top_k >= 0, "generate: top_k ", sampling.top_k, " must not be negative");
  require(sampling.top_p > 0 && sampling.top_p <= 1, "generate: top_p ", sampling.top_p, " must be in (0, 1]");
}

// Room for one more element, so that push_back cannot fail.
template <class T>
void reserve_one_more(std::vector<T>& values) {
  if (values.size() == values.capacity()) values.reserve(std::max<std::size_t>(16, 2 * values.capacity()));
}

}  // namespace

double Generation::tokens_per_second() const {
  const double seconds = std::accumulate(step_seconds.begin(), step_seconds.end(), prompt_seconds);
  return seconds > 0 ? static_cast<double>(new_tokens) / seconds : 0.0;
}

// Logits of the last token, for a model of either kind.
class Generator::Stepper {
 public:
  Stepper(const Transformer& model, std::vector<std::int32_t> prompt, const GenerateParams& params,
          std::int64_t capacity)
      : model_(model),
        prompt_(std::move(prompt)),
        encoder_(model.config().encoder.has_value()),
        context_{.executor = params.executor} {
    if (params.cache) cache_ = model.make_cache(1, capacity);
  }

  // Kept until the sequence grows: where sampling runs out of memory, the cache has already seen the sequence.
  Value logits(const std::vector<std::int32_t>& sequence) {
    if (!logits_ || logits_of_ != sequence.size()) {
      logits_ = compute(sequence);
      logits_of_ = sequence.size();
    }
    return logits_;
  }

 private:
  Value compute(const std::vector<std::int32_t>& sequence) {
    // Dynamic RoPE turns every key by another angle with each token past the trained length: what is kept no longer
    // fits.
    const RopeConfig& rope = model_.config().rope;
    if (rope.dynamic && static_cast<std::int64_t>(sequence.size()) > rope.max_position) cache_.reset();
    std::vector<std::int32_t> fresh = sequence;
    if (cache_) fresh.erase(fresh.begin(), fresh.begin() + cache_->length);
    ModelInput input;
    (encoder_ ? input.decoder_ids : input.ids) = std::move(fresh);
    if (encoder_) input.ids = prompt_;
    return model_.forward(context_, input, {.last_only = true}, cache_ ? &*cache_ : nullptr).output;
  }

  const Transformer& model_;
  std::vector<std::int32_t> prompt_;
  bool encoder_;
  Context context_;
  std::optional<ModelCache> cache_;
  Value logits_;
  std::size_t logits_of_ = 0;  // length of the sequence
};

Generator::Generator(const Transformer& model, std::vector<std::int32_t> prompt, const GenerateParams& params)
    : model_(model), params_(params) {
  check_params(params);
  const TransformerConfig& config = model.config();
  require(config.output == ModelOutput::logits, "generate: ", config.architecture,
          " gives hidden states, not the next token");
  require(!prompt.empty(), "generate: the prompt has no tokens");
  if (config.encoder) {
    require(config.decoder_start >= 0, "generate: the config has no decoder_start_token_id");
    result_.ids = {static_cast<std::int32_t>(config.decoder_start)};
  } else {
    result_.ids = prompt;
  }
  limit_ = params.max_new;
  const auto start_length = static_cast<std::int64_t>(result_.ids.size());
  if (config.max_position > 0) {
    require(start_length <= config.max_position, "generate: the prompt has ", start_length,
            " tokens, but the model has ", config.max_position, " positions");
    limit_ = std::min(limit_, config.max_position - start_length + 1);
  }
  constexpr std::int64_t kMostAtFirst = 1024;  // a large max_new may never be reached; the cache grows
  stepper_ = std::make_unique<Stepper>(model, std::move(prompt), params, start_length + std::min(limit_, kMostAtFirst));
}

Generator::~Generator() = default;
Generator::Generator(Generator&&) noexcept = default;

std::optional<std::int32_t> Generator::next() {
  if (ended_ || result_.new_tokens >= limit_) return {};
  const TransformerConfig& config = model_.config();
  const auto start = std::chrono::steady_clock::now();
  reserve_one_more(result_.ids);
  reserve_one_more(result_.step_seconds);
  const Value logits = stepper_->logits(result_.ids);
  std::int32_t next = sample(std::as_const(logits->value()).values<float>(), params_.sampling,
                             static_cast<std::uint64_t>(result_.new_tokens));
  if (config.forced_end >= 0 && result_.new_tokens + 1 == params_.max_new) {
    next = static_cast<std::int32_t>(config.forced_end);
  }
  if (result_.new_tokens == 0) {
    result_.prompt_seconds = seconds_since(start);
  } else {
    result_.step_seconds.push_back(seconds_since(start));
  }
  result_.ids.push_back(next);
  ++result_.new_tokens;
  ended_ = params_.stop_at_end && std::ranges::find(config.end_tokens, next) != config.end_tokens.end();
  return next;
}

Generation generate(const Transformer& model, std::vector<std::int32_t> prompt, const GenerateParams& params,
                    const std::function<bool(std::int32_t)>& on_token) {
  Generator generator(model, std::move(prompt), params);
  while (const std::optional<std::int32_t> id = generator.next()) {
    if (on_token && !on_token(*id)) break;
  }
  return generator.so_far();
}

}  // namespace rootdk
