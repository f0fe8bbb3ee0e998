#pragma once

// A checkpoint folder, read: the model, and its tokenizer where the folder has one.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/checkpoint.h"
#include "models/tokenizer.h"

namespace rootdk {

struct LoadedModel {
  std::string name;  // the folder; what messages and reports call the model
  Transformer model;
  std::optional<Tokenizer> tokenizer{};

  // A folder with config.json and model.safetensors, or "builtin": the model that comes with the project.
  static LoadedModel load(const std::string& folder, const LoadOptions& options = {});

  const Tokenizer& require_tokenizer() const;  // throws rootdk::Error that says so where there is none
  // The ids of a text. An empty text becomes the model's first token, where its config names one.
  std::vector<std::int32_t> ids_of(std::string_view text) const;
  // What each token adds to the text; the ids themselves where there is no tokenizer.
  std::vector<std::string> texts_of(std::span<const std::int32_t> ids) const;
};

}  // namespace rootdk
