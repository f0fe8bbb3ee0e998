#include "models/batch.h"

#include <algorithm>

#include "core/check.h"

namespace rootdk {

BatchGenerator::BatchGenerator(const Transformer& model, const BatchOptions& options)
    : model_(model),
      options_(options),
      context_{.executor = options.executor},
      cache_(model.make_cache({.dtype = options.cache_type})) {
  require(options.max_sequences >= 1 && options.prompt_tokens >= 1, "batch: max_sequences ", options.max_sequences,
          " and prompt_tokens ", options.prompt_tokens, " must be at least 1");
}

std::size_t BatchGenerator::add(std::vector<std::int32_t> prompt, const GenerateParams& params) {
  const TransformerConfig& config = model_.config();
  const std::int64_t entries = config.encoder ? config.vocab_size : config.decoder_vocab_size;
  for (const std::int32_t id : prompt) {
    require(id >= 0 && id < entries, "batch: id ", id, " of the prompt is not in 0 to ", entries - 1);
  }
  Request request{.continuation = Continuation(model_, prompt, params), .source = {}};
  const std::int64_t longest =
      static_cast<std::int64_t>(request.continuation.ids().size()) + request.continuation.limit();
  require(!config.rope.dynamic || longest <= config.rope.max_position,
          "batch: dynamic RoPE rotates every key anew past ", config.rope.max_position, " tokens; a request of ",
          longest, " must run alone");
  if (config.encoder) request.source = std::move(prompt);
  requests_.push_back(std::move(request));
  waiting_.push_back(requests_.size() - 1);
  return requests_.size() - 1;
}

void BatchGenerator::cancel(std::size_t number) {
  std::erase(waiting_, number);
  if (std::erase(active_, number) > 0) leave(requests_.at(number));
}

void BatchGenerator::leave(Request& request) {
  cache_.close(request.sequence);
  request.sequence = SequenceId::none;
}

void BatchGenerator::admit() {
  std::int64_t tokens = 0;
  while (!waiting_.empty() && under_way() < options_.max_sequences && tokens < options_.prompt_tokens) {
    Request& request = requests_[waiting_.front()];
    if (!request.continuation.ended()) {
      request.sequence = model_.open_sequence(context_, cache_, request.source);
      tokens += static_cast<std::int64_t>(request.continuation.ids().size() + request.source.size());
      active_.push_back(waiting_.front());
    }
    waiting_.pop_front();
  }
}

std::vector<BatchToken> BatchGenerator::step() {
  admit();
  std::vector<BatchToken> tokens;
  if (active_.empty()) return tokens;
  std::vector<KvStep> steps;
  std::vector<std::int32_t> ids;
  for (const std::size_t number : active_) {
    Request& request = requests_[number];
    const std::vector<std::int32_t>& all = request.continuation.ids();
    ids.insert(ids.end(), all.begin() + static_cast<std::ptrdiff_t>(request.given), all.end());
    steps.push_back({.sequence = request.sequence, .tokens = static_cast<std::int64_t>(all.size() - request.given)});
  }
  const Value logits = model_.extend(context_, cache_, ids, steps);
  const std::span<const float> all = std::as_const(*logits).value().values<float>();
  const auto width = static_cast<std::size_t>(logits->width());
  for (std::size_t i = 0; i < active_.size(); ++i) {
    Request& request = requests_[active_[i]];
    request.given = request.continuation.ids().size();
    const std::int32_t id = request.continuation.take(all.subspan(i * width, width));
    tokens.push_back({.request = active_[i], .id = id, .last = request.continuation.ended()});
    if (tokens.back().last) leave(request);
  }
  std::erase_if(active_, [&](std::size_t number) { return requests_[number].continuation.ended(); });
  return tokens;
}

}  // namespace rootdk
