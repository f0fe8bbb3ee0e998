#include "models/config.h"

#include <algorithm>

#include <cmath>
#include <fstream>
#include <iterator>

#include "models/architectures.h"
#include "models/json_fields.h"

namespace rootdk {
namespace {

std::string read_text(const std::filesystem::path& path) {
  constexpr std::uintmax_t kLargest = 16u << 20;
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  require(!error, path.string(), ": ", error.message());
  require(size <= kLargest, path.string(), ": ", size, " bytes are too many for a configuration");
  std::ifstream file(path, std::ios::binary);
  require(file.good(), path.string(), ": cannot be opened");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::int32_t> token_list(const JsonFields& fields, std::string_view name) {
  const Json* value = fields.find({name});
  std::vector<std::int32_t> ids;
  if (!value) return ids;
  auto add = [&](const Json& id) {
    require(id.is_number_integer() && id.get<std::int64_t>() >= 0 && id.get<std::int64_t>() < (std::int64_t{1} << 31),
            fields.where(), ": ", name, " must be a token id or a list of them, not ", JsonFields::shown(*value));
    ids.push_back(id.get<std::int32_t>());
  };
  if (value->is_array()) {
    for (const Json& id : *value) add(id);
  } else {
    add(*value);
  }
  return ids;
}

void read_generation_fields(TransformerConfig& config, const JsonFields& fields) {
  if (fields.has("eos_token_id")) config.end_tokens = token_list(fields, "eos_token_id");
  auto first = [&](std::string_view name, std::int64_t& into) {
    const std::vector<std::int32_t> ids = token_list(fields, name);
    if (!ids.empty()) into = ids.front();
  };
  first("decoder_start_token_id", config.decoder_start);
  first("forced_eos_token_id", config.forced_end);
  first("bos_token_id", config.begin_token);
}

// What no architecture here can do, whatever its type.
void refuse_unsupported(const JsonFields& fields) {
  if (const Json* quantization = fields.find({"quantization_config"})) {
    fail(fields.where(), ": quantization_config ", JsonFields::shown(*quantization),
         " is not supported; weights must be F32, F16 or BF16");
  }
  require(!fields.boolean({"add_cross_attention"}, false), fields.where(),
          ": add_cross_attention true is not supported outside encoder-decoder models");
}

}  // namespace

std::vector<std::string_view> supported_architectures() {
  std::vector<std::string_view> names;
  for (const Architecture& architecture : architectures()) names.push_back(architecture.model_type);
  return names;
}

TransformerConfig parse_config(std::string_view json_text, const std::string& where) {
  const Json document = parse_json(json_text, where);
  const JsonFields fields(document, where);
  const std::string type = fields.text({"model_type"}, "");
  for (const Architecture& architecture : architectures()) {
    if (architecture.model_type != type) continue;
    refuse_unsupported(fields);
    TransformerConfig config = architecture.parse(fields);
    config.architecture = type;
    if (config.decoder_vocab_size == 0) config.decoder_vocab_size = config.vocab_size;
    config.trained_context =
        std::max<std::int64_t>(0, fields.integer({"max_position_embeddings", "n_positions", "n_ctx", "context"}, 0));
    read_generation_fields(config, fields);
    return config;
  }
  std::string names;
  for (const std::string_view name : supported_architectures())
    names += (names.empty() ? "" : ", ") + std::string(name);
  fail(where, ": model_type \"", type, "\" is not supported; supported: ", names);
}

void apply_generation_config(TransformerConfig& config, std::string_view json_text, const std::string& where) {
  const Json document = parse_json(json_text, where);
  read_generation_fields(config, JsonFields(document, where));
}

TransformerConfig load_config(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "config.json", generation = folder / "generation_config.json";
  require(std::filesystem::is_directory(folder), folder.string(), ": not a folder with a model");
  TransformerConfig config = parse_config(read_text(file), file.string());
  if (std::filesystem::exists(generation)) apply_generation_config(config, read_text(generation), generation.string());
  return config;
}

}  // namespace rootdk
