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
  std::int64_t batch_tokens = 4096;  // of a forward pass, at most, where a text is not longer
  Executor* executor = nullptr;
};

// What 1_Pooling/config.json of a sentence-transformers folder says; mean where there is none. A way of pooling that is
// not supported is an error that names it.
Pooling stored_pooling(const std::filesystem::path& folder);

// f32 [texts, d_model]. A text gives the same bits whatever the others are. One that is longer than the model's
// positions loses its end, as elsewhere; `truncated` counts these where it is given.
Tensor embed_texts(const LoadedModel& loaded, std::span<const std::string> texts, const EmbedParams& params = {},
                   std::int64_t* truncated = nullptr);

}  // namespace rootdk
