#pragma once

// Speculative decoding: a small model proposes tokens, and the model computes what follows each of them in one call. A
// proposal counts where the token that the generation takes is the one proposed; the rest is trimmed from the cache.

#include <span>

#include "models/generate.h"

namespace rootdk {

// One sequence of a model's cache, which follows a text that grows.
class CachedText {
 public:
  CachedText(const Transformer& model, std::span<const std::int32_t> source, const CacheOptions& options,
             Context& context);

  // Gives the model those tokens of the text that it has not seen, after it has forgotten what the text no longer has.
  Value extend(std::span<const std::int32_t> text, ExtendOutput output, Context& context);
  // The longest text that the model takes from a cache.
  std::int64_t longest() const;

 private:
  const Transformer* model_;
  ModelCache cache_;
  SequenceId sequence_;
  std::vector<std::int32_t> seen_;
};

class Speculation {
 public:
  Speculation(const Transformer& draft, std::int64_t tokens, std::optional<DType> cache_type, std::int64_t capacity,
              Context& context);

  // The logits behind the text. They are computed together with those behind the draft's tokens, and found again while
  // the text goes on as the draft proposed. `most` tokens are still wanted.
  std::span<const float> logits(CachedText& model, const std::vector<std::int32_t>& text, std::int64_t most,
                                Generation& counts, Context& context);

 private:
  // How many tokens are proposed behind the text: none where either model has no room for them.
  std::int64_t count_behind(std::int64_t length, std::int64_t most, const CachedText& model) const;
  void propose(const std::vector<std::int32_t>& text, std::int64_t count, Context& context);
  std::span<const float> row(std::size_t number) const;

  CachedText draft_;
  std::int64_t tokens_;
  std::vector<std::int32_t> proposed_;  // the text and the tokens behind it
  std::size_t first_ = 0;               // length of the text that row 0 of logits_ belongs to
  Value logits_;
};

}  // namespace rootdk
