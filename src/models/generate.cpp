#include "models/generate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/check.h"
#include "models/speculation.h"
#include "rootdk/dropout.h"

namespace rootdk {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Token ids from the largest logit to the smallest, of equal ones the lowest id first. Few tokens make up most of a
// softmax: only as many are put in order as are asked for.
class TokenOrder {
 public:
  explicit TokenOrder(std::span<const float> logits) : logits_(logits), ids_(logits.size()) {
    std::iota(ids_.begin(), ids_.end(), 0);
  }
  std::size_t size() const { return ids_.size(); }
  // Only the first `count`.
  void keep(std::size_t count) {
    if (count >= ids_.size()) return;
    sort_until(count);
    ids_.resize(count);
  }
  // The tokens in any order, which is the same for the same logits.
  std::int32_t any(std::size_t i) const { return ids_[i]; }
  std::int32_t operator[](std::size_t rank) {
    constexpr std::size_t kAtFirst = 64, kGrowth = 8;
    if (rank >= sorted_) sort_until(std::max(kAtFirst, kGrowth * sorted_));
    return ids_[rank];
  }

 private:
  void sort_until(std::size_t count) {
    const auto before = [this](std::int32_t a, std::int32_t b) {
      const float x = logits_[static_cast<std::size_t>(a)], y = logits_[static_cast<std::size_t>(b)];
      return x > y || (x == y && a < b);
    };
    const auto begin = ids_.begin() + static_cast<std::ptrdiff_t>(sorted_);
    sorted_ = std::min(count, ids_.size());
    const auto end = ids_.begin() + static_cast<std::ptrdiff_t>(sorted_);
    if (end != ids_.end()) std::nth_element(begin, end, ids_.end(), before);
    std::sort(begin, end, before);
  }

  std::span<const float> logits_;
  std::vector<std::int32_t> ids_;
  std::size_t sorted_ = 0;
};

// Room for one more element, so that push_back cannot fail.
template <class T>
void reserve_one_more(std::vector<T>& values) {
  if (values.size() == values.capacity()) values.reserve(std::max<std::size_t>(16, 2 * values.capacity()));
}

}  // namespace

std::int32_t sample(std::span<const float> logits, const SamplingParams& params, std::uint64_t step) {
  require(!logits.empty(), "sample: no logits");
  // -inf is a token that cannot come; with NaN or +inf there is no softmax.
  const auto bad = std::ranges::find_if(
      logits, [](float x) { return std::isnan(x) || x == std::numeric_limits<float>::infinity(); });
  if (bad != logits.end()) {
    fail("generate: the logit of token ", bad - logits.begin(), " is ", *bad, " at new token ", step,
         "; the weights hold NaN or numbers too large for f32");
  }
  const auto largest = std::max_element(logits.begin(), logits.end());
  // Where no token can come there is no softmax either.
  if (params.greedy || *largest == -std::numeric_limits<float>::infinity()) {
    return static_cast<std::int32_t>(largest - logits.begin());
  }
  TokenOrder order(logits);
  if (params.top_k > 0) order.keep(static_cast<std::size_t>(params.top_k));
  auto weight = [&](std::int32_t id) {
    return std::exp((static_cast<double>(logits[static_cast<std::size_t>(id)]) - *largest) / params.temperature);
  };
  double sum = 0;
  for (std::size_t i = 0; i < order.size(); ++i) sum += weight(order.any(i));
  double kept = sum;
  std::size_t count = order.size();
  if (params.top_p < 1) {
    kept = 0;
    for (count = 0; count < order.size() && (count == 0 || kept < params.top_p * sum);) kept += weight(order[count++]);
  }
  const PhiloxWords words =
      philox4x32_10({static_cast<std::uint32_t>(step), static_cast<std::uint32_t>(step >> 32), 0u, 2u}, params.seed);
  double rest = kept * (words[0] * 0x1p-32 + words[1] * 0x1p-64);
  for (std::size_t i = 0; i + 1 < count; ++i) {
    rest -= weight(order[i]);
    if (rest < 0) return order[i];
  }
  return order[count - 1];
}

double Generation::tokens_per_second() const {
  const double seconds = std::accumulate(step_seconds.begin(), step_seconds.end(), prompt_seconds);
  return seconds > 0 ? static_cast<double>(new_tokens) / seconds : 0.0;
}

Continuation::Continuation(const Transformer& model, std::span<const std::int32_t> prompt, const GenerateParams& params)
    : config_(&model.config()), params_(params) {
  require(params.max_new >= 0, "generate: max_new ", params.max_new, " must not be negative");
  check_sampling(params.sampling);
  require(config_->output == ModelOutput::logits, "generate: ", config_->architecture,
          " gives hidden states, not the next token");
  require(!prompt.empty(), "generate: the prompt has no tokens");
  if (config_->encoder) {
    require(config_->decoder_start >= 0, "generate: the config has no decoder_start_token_id");
    const std::int64_t positions = config_->encoder->stored_positions;
    require(positions == 0 || static_cast<std::int64_t>(prompt.size()) <= positions, "generate: the source has ",
            prompt.size(), " tokens, but the encoder has ", positions, " positions");
    result_.ids = {static_cast<std::int32_t>(config_->decoder_start)};
  } else {
    result_.ids.assign(prompt.begin(), prompt.end());
  }
  limit_ = params.max_new;
  const auto start_length = static_cast<std::int64_t>(result_.ids.size());
  if (config_->max_position > 0) {
    require(start_length <= config_->max_position, "generate: the prompt has ", start_length,
            " tokens, but the model has ", config_->max_position, " positions");
    limit_ = std::min(limit_, config_->max_position - start_length + 1);
  }
}

std::int32_t Continuation::take(std::span<const float> logits) {
  reserve_one_more(result_.ids);
  std::int32_t next =
      choose_token(logits, result_.ids, params_.sampling, static_cast<std::uint64_t>(result_.new_tokens));
  if (config_->forced_end >= 0 && result_.new_tokens + 1 == params_.max_new) {
    next = static_cast<std::int32_t>(config_->forced_end);
  }
  result_.ids.push_back(next);
  ++result_.new_tokens;
  ended_ = params_.stop_at_end && std::ranges::find(config_->end_tokens, next) != config_->end_tokens.end();
  return next;
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
    if (params.cache)
      cached_.emplace(model, source(), CacheOptions{.dtype = params.cache_type, .tokens = capacity}, context_);
    if (!params.draft) return;
    require(params.cache, "generate: a draft needs the cache");
    const TransformerConfig &config = model.config(), &of_draft = params.draft->config();
    require(!config.encoder && !of_draft.encoder, "generate: a draft is a decoder for a decoder, and ",
            config.encoder ? config.architecture : of_draft.architecture, " has an encoder");
    require(of_draft.decoder_vocab_size == config.decoder_vocab_size,
            "generate: a draft has the vocabulary of the model, not ", of_draft.decoder_vocab_size, " tokens beside ",
            config.decoder_vocab_size);
    speculation_.emplace(*params.draft, params.draft_tokens, params.cache_type, capacity, context_);
  }

  // The logits behind the sequence, kept until it grows: where sampling runs out of memory, the cache has already seen
  // it. `most` tokens may still follow.
  std::span<const float> logits(const std::vector<std::int32_t>& sequence, std::int64_t most, Generation& counts) {
    if (row_.empty() || row_of_ != sequence.size()) {
      row_ = compute(sequence, most, counts);
      row_of_ = sequence.size();
    }
    return row_;
  }

 private:
  std::span<const float> compute(const std::vector<std::int32_t>& sequence, std::int64_t most, Generation& counts) {
    row_ = {};
    // Dynamic RoPE turns every key by another angle with each token past the trained length: what is kept no longer
    // fits.
    const RopeConfig& rope = model_.config().rope;
    if (rope.dynamic && static_cast<std::int64_t>(sequence.size()) > rope.max_position) {
      cached_.reset();
      speculation_.reset();
    }
    if (!cached_) {
      kept_ = anew(sequence);
    } else if (speculation_) {
      return speculation_->logits(*cached_, sequence, most, counts, context_);
    } else {
      kept_ = cached_->extend(sequence, ExtendOutput::last_token, context_);
    }
    return std::as_const(*kept_).value().values<float>();
  }

  std::vector<std::int32_t> source() const { return encoder_ ? prompt_ : std::vector<std::int32_t>(); }

  Value anew(const std::vector<std::int32_t>& sequence) {
    ModelInput input;
    (encoder_ ? input.decoder_ids : input.ids) = sequence;
    if (encoder_) input.ids = prompt_;
    return model_.forward(context_, input, {.last_only = true}).output;
  }

  const Transformer& model_;
  std::vector<std::int32_t> prompt_;
  bool encoder_;
  Context context_;
  std::optional<CachedText> cached_;
  std::optional<Speculation> speculation_;
  Value kept_;
  std::span<const float> row_;  // of what is kept
  std::size_t row_of_ = 0;      // length of the sequence
};

Generator::Generator(const Transformer& model, std::vector<std::int32_t> prompt, const GenerateParams& params)
    : continuation_(model, prompt, params) {
  constexpr std::int64_t kMostAtFirst = 1024;  // a large max_new may never be reached; the cache grows
  const auto start_length = static_cast<std::int64_t>(continuation_.ids().size());
  stepper_ = std::make_unique<Stepper>(model, std::move(prompt), params,
                                       start_length + std::min(continuation_.limit(), kMostAtFirst));
}

Generator::~Generator() = default;
Generator::Generator(Generator&&) noexcept = default;

std::optional<std::int32_t> Generator::next() {
  if (continuation_.ended()) return {};
  Generation& result = continuation_.result();
  const auto start = std::chrono::steady_clock::now();
  reserve_one_more(result.step_seconds);
  const std::int64_t most = continuation_.limit() - result.new_tokens;
  const std::int32_t next = continuation_.take(stepper_->logits(continuation_.ids(), most, result));
  if (result.new_tokens == 1) {
    result.prompt_seconds = seconds_since(start);
  } else {
    result.step_seconds.push_back(seconds_since(start));
  }
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
