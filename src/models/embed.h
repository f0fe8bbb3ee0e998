#pragma once

// Texts as vectors: the hidden states of an encoder, pooled over a text's tokens.

#include <filesystem>
#include <span>
#include <string>

#include "models/loaded_model.h"

namespace rootdk {

enum class Pooling : std::int32_t {
  mean = 0,         // over all tokens
  first_token = 1,  // [CLS]
};

struct EmbedParams {
  Pooling pooling = Pooling::mean;
  bool normalise = true;             // to length 1
  std::int64_t max_tokens = 0;       // of a text, which loses its end beyond; 0: the model's positions
  std::int64_t batch_tokens = 4096;  // of a forward pass, at most, where a text is not longer
  Executor* executor = nullptr;
};

// What 1_Pooling/config.json of a sentence-transformers folder says; mean where there is none. A way of pooling that is
// not supported, or a further module in its modules.json, is an error that names it.
Pooling stored_pooling(const std::filesystem::path& folder);
// max_seq_length of its sentence_bert_config.json; 0 where there is none.
std::int64_t stored_max_tokens(const std::filesystem::path& folder);

// The most tokens of a text: max_tokens and the model's positions, whichever is less; 0: no limit.
std::int64_t longest_text(const LoadedModel& loaded, const EmbedParams& params);

// f32 [texts, d_model]. A text gives the same bits whatever the others are. One that is longer than longest_text()
// loses its end, as elsewhere; `truncated` counts these where it is given.
Tensor embed_texts(const LoadedModel& loaded, std::span<const std::string> texts, const EmbedParams& params = {},
                   std::int64_t* truncated = nullptr);

}  // namespace rootdk
