#include "models/speculation.h"

#include <algorithm>
#include <limits>

#include "core/check.h"

namespace rootdk {

CachedText::CachedText(const Transformer& model, std::span<const std::int32_t> source, const CacheOptions& options,
                       Context& context)
    : model_(&model), cache_(model.make_cache(options)), sequence_(model.open_sequence(context, cache_, source)) {}

Value CachedText::extend(std::span<const std::int32_t> text, ExtendOutput output, Context& context) {
  const auto common = static_cast<std::size_t>(std::ranges::mismatch(seen_, text).in1 - seen_.begin());
  // The last token is always given again where nothing else is new: its output is what is asked for.
  const std::size_t kept = std::min(common, text.size() - 1);
  seen_.reserve(text.size());
  if (kept < seen_.size()) cache_.keys.trim(sequence_, static_cast<std::int64_t>(kept));
  seen_.resize(kept);
  const std::span<const std::int32_t> fresh = text.subspan(kept);
  const Value result = model_->extend(
      context, cache_, fresh, KvStep{.sequence = sequence_, .tokens = static_cast<std::int64_t>(fresh.size())}, output);
  seen_.insert(seen_.end(), fresh.begin(), fresh.end());
  return result;
}

std::int64_t CachedText::longest() const {
  constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();
  const TransformerConfig& config = model_->config();
  return std::min(config.max_position > 0 ? config.max_position : kAny,
                  config.rope.dynamic ? config.rope.max_position : kAny);
}

Speculation::Speculation(const Transformer& draft, std::int64_t tokens, std::optional<DType> cache_type,
                         std::int64_t capacity, Context& context)
    : draft_(draft, {}, {.dtype = cache_type, .tokens = capacity}, context), tokens_(tokens) {
  require(tokens >= 1 && tokens <= 64, "generate: draft_tokens ", tokens, " is not in 1 to 64");
}

std::span<const float> Speculation::row(std::size_t number) const {
  const auto width = static_cast<std::size_t>(logits_->width());
  return std::as_const(*logits_).value().values<float>().subspan(number * width, width);
}

std::int64_t Speculation::count_behind(std::int64_t length, std::int64_t most, const CachedText& model) const {
  // The last proposal is given to the model, but not to the draft.
  const std::int64_t room = std::min(model.longest() - length, draft_.longest() - (length - 1));
  return std::max<std::int64_t>(0, std::min({tokens_, most - 1, room}));
}

void Speculation::propose(const std::vector<std::int32_t>& text, std::int64_t count, Context& context) {
  proposed_ = text;
  for (std::int64_t i = 0; i < count; ++i) {
    const Value logits = draft_.extend(proposed_, ExtendOutput::last_token, context);
    const std::span<const float> all = std::as_const(*logits).value().values<float>();
    proposed_.push_back(static_cast<std::int32_t>(std::ranges::max_element(all) - all.begin()));
  }
}

std::span<const float> Speculation::logits(CachedText& model, const std::vector<std::int32_t>& text, std::int64_t most,
                                           Generation& counts, Context& context) {
  if (logits_ && text.size() > first_ && text.size() <= proposed_.size() && text.back() == proposed_[text.size() - 1]) {
    ++counts.accepted;
    return row(text.size() - first_);
  }
  // A prompt goes alone: attention over it and over tokens behind it are different calls, and the first token should
  // not wait for a draft.
  const std::int64_t count = logits_ ? count_behind(static_cast<std::int64_t>(text.size()), most, model) : 0;
  propose(text, count, context);
  const Value computed =
      model.extend(proposed_, count > 0 ? ExtendOutput::all_tokens : ExtendOutput::last_token, context);
  counts.drafted += count;
  first_ = text.size();
  logits_ = computed;
  return row(0);
}

}  // namespace rootdk
