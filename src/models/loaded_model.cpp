#include "models/loaded_model.h"

#include <filesystem>

#include "core/check.h"
#include "models/builtin.h"

namespace rootdk {

LoadedModel LoadedModel::load(const std::string& folder, const LoadOptions& options) {
  return reading_file([&] {
    const std::filesystem::path path = model_folder(folder);
    LoadedModel loaded{.name = folder, .model = load_model(path, options)};
    if (std::filesystem::exists(path / "tokenizer.json")) loaded.tokenizer = Tokenizer::load(path);
    return loaded;
  });
}

const Tokenizer& LoadedModel::require_tokenizer() const {
  require(tokenizer.has_value(), name, ": has no tokenizer.json; give token ids instead of text");
  return *tokenizer;
}

std::vector<std::int32_t> LoadedModel::ids_of(std::string_view text) const {
  std::vector<std::int32_t> ids = require_tokenizer().encode(text);
  const std::int64_t begin = model.config().begin_token;
  if (ids.empty() && begin >= 0) ids.push_back(static_cast<std::int32_t>(begin));
  require(!ids.empty(), name, ": the text has no tokens, and the config no bos_token_id to begin with");
  return ids;
}

std::vector<std::string> LoadedModel::texts_of(std::span<const std::int32_t> ids) const {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (!tokenizer) {
      texts.push_back(std::to_string(ids[i]));
      continue;
    }
    // Decoded behind its neighbour, because the first token of a text loses its space.
    const std::size_t begin = i > 0 ? i - 1 : 0;
    const std::string before = tokenizer->decode(ids.subspan(begin, i - begin), true);
    std::string text = tokenizer->decode(ids.subspan(begin, i + 1 - begin), true);
    text = text.starts_with(before) ? text.substr(before.size()) : tokenizer->decode(ids.subspan(i, 1), true);
    texts.push_back(text.empty() ? tokenizer->token(ids[i]) : text);
  }
  return texts;
}

}  // namespace rootdk
