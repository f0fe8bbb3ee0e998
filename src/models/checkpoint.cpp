#include "models/checkpoint.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

#include "core/check.h"
#include "models/fill_parameter.h"
#include "models/json_fields.h"
#include "models/quantised_checkpoint.h"

namespace rootdk {
namespace {

std::string read_index(const std::filesystem::path& path) {
  constexpr std::uintmax_t kLargest = 256u << 20;
  const std::uintmax_t size = std::filesystem::file_size(path);
  require(size <= kLargest, path.string(), ": ", size, " bytes are too many for an index");
  std::ifstream file(path, std::ios::binary);
  require(file.good(), path.string(), ": cannot be opened");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Tensor name to file name, from model.safetensors.index.json.
std::map<std::string, std::string> shard_map(const std::filesystem::path& index) {
  const Json document = parse_json(read_index(index), index.string());
  const JsonFields fields(document, index.string());
  const Json* weights = fields.find({"weight_map"});
  require(weights && weights->is_object(), index.string(), ": weight_map is missing or not an object");
  std::map<std::string, std::string> shards;
  for (const auto& [name, file] : weights->items()) {
    require(file.is_string(), index.string(), ": weight_map of ", name, " must be a file name, not ",
            JsonFields::shown(file));
    const auto text = file.get<std::string>();
    require(!text.empty() && text == std::filesystem::path(text).filename().string() && text != "..", index.string(),
            ": weight_map of ", name, " must be a file in the same folder, not \"", text, "\"");
    shards[name] = text;
  }
  return shards;
}

// What a file may hold beyond what its config says: a head of its own, which wins over tying, and tables of positions
// that could also be computed (older Marian checkpoints).
void adapt_to_file(TransformerConfig& config, const Checkpoint& checkpoint) {
  TransformerConfig richer = config;
  richer.tied_head = false;
  const bool sinusoidal = config.positions == PositionEncoding::sinusoidal && config.encoder;
  if (sinusoidal) richer.encoder->stored_positions = richer.stack.stored_positions = 1;
  auto rows = [&](const std::string& name) {  // at least one, so that a table of another shape is refused by its check
    const std::span<const std::int64_t> shape = checkpoint.shape(name);
    return shape.empty() ? std::int64_t{1} : std::max<std::int64_t>(1, shape[0]);
  };
  for (const Binding& binding : bind(richer, checkpoint)) {
    if (!checkpoint.contains(binding.stored)) continue;
    if (binding.parameter == "head.weight") config.tied_head = false;
    if (binding.parameter == "encoder.positions.weight") {
      config.encoder->stored_positions = rows(binding.stored);
    } else if (binding.parameter == "stack.positions.weight") {
      config.stack.stored_positions = rows(binding.stored);
    }
  }
  if (sinusoidal) config.max_position = config.stack.stored_positions;
}

// What write_quantised() noted of the file it read.
void adapt_to_quantised(TransformerConfig& config, const Checkpoint& checkpoint) {
  const std::map<std::string, std::string>& metadata = checkpoint.metadata();
  if (const auto type = metadata.find("rootdk_stored_type"); type != metadata.end()) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      if (type->second == name_of(dtype)) config.stored_type = dtype;
    }
  }
  if (const auto tied = metadata.find("rootdk_tied_head"); tied != metadata.end()) {
    config.tied_head = tied->second == "1";
  }
  auto rows = [&](const std::string& name) -> std::int64_t {
    return checkpoint.contains(name) && !checkpoint.shape(name).empty() ? checkpoint.shape(name)[0] : 0;
  };
  config.stack.stored_positions = rows("stack.positions.weight");
  if (config.stack.stored_positions > 0) config.max_position = config.stack.stored_positions;
  if (config.encoder) config.encoder->stored_positions = rows("encoder.positions.weight");
}

// The format that a parameter is made into. A table of embeddings is read a row at a time, which costs nothing in any
// type; as the head it decides between tokens, for which four bits are few.
std::optional<WeightFormat> weights_of(const std::string& parameter, const TransformerConfig& config,
                                       const LoadOptions& options) {
  if (!options.weights) return {};
  const bool embedding = parameter.ends_with("embedding.weight");
  const bool head =
      parameter == "head.weight" ||
      (embedding && config.tied_head && (!config.separate_embeddings || parameter == "decoder_embedding.weight"));
  if (embedding && !head) return {};
  return head ? WeightFormat::i8 : options.weights;
}

}  // namespace

Checkpoint Checkpoint::open(const std::filesystem::path& folder) {
  Checkpoint checkpoint;
  checkpoint.where_ = folder.string();
  for (const char* name : {"model.safetensors", "pytorch_model.bin"}) {
    const std::filesystem::path single = folder / name, index = folder / (std::string(name) + ".index.json");
    if (std::filesystem::exists(single)) {
      checkpoint.files_.push_back(open_tensor_file(single));
      for (const std::string& tensor : checkpoint.files_[0]->names()) checkpoint.places_[tensor] = 0;
      return checkpoint;
    }
    if (std::filesystem::exists(index)) {
      checkpoint.read_shards(folder, index);
      return checkpoint;
    }
  }
  fail(folder.string(), ": neither model.safetensors nor model.safetensors.index.json, nor pytorch_model.bin");
}

void Checkpoint::read_shards(const std::filesystem::path& folder, const std::filesystem::path& index) {
  std::map<std::string, std::size_t> numbers;
  for (const auto& [name, file] : shard_map(index)) {
    if (!numbers.contains(file)) {
      numbers[file] = files_.size();
      files_.push_back(open_tensor_file(folder / file));
    }
    const std::size_t number = numbers[file];
    require(files_[number]->contains(name), index.string(), ": ", name, " is not in ", file);
    places_[name] = number;
  }
  require(!files_.empty(), index.string(), ": weight_map is empty");
}

void check_bindings(const std::vector<Binding>& bindings, const Checkpoint& checkpoint) {
  std::ostringstream problems;
  int count = 0;
  auto problem = [&](const auto&... parts) {
    if (++count > 5) return;
    problems << "\n  ";
    (problems << ... << parts);
  };
  for (const Binding& binding : bindings) {
    if (!checkpoint.contains(binding.stored)) {
      problem(binding.stored, " is missing; expected ", shape_text(binding.stored_shape));
      continue;
    }
    const std::string_view type = checkpoint.type_name(binding.stored);
    if (type != "F32" && type != "F16" && type != "BF16") {
      problem(binding.stored, " is ", type, "; supported: F32, F16, BF16");
    }
    const std::span<const std::int64_t> found = checkpoint.shape(binding.stored);
    if (!std::equal(found.begin(), found.end(), binding.stored_shape.begin(), binding.stored_shape.end())) {
      problem(binding.stored, " has shape ", shape_text(found), ", but the config asks for ",
              shape_text(binding.stored_shape));
    }
  }
  if (count > 5) problems << "\n  and " << count - 5 << " more";
  require(count == 0, checkpoint.where(), ": the weights do not fit the config:", problems.str());
}

DType generation_activations() { return has_bf16_products() ? DType::bf16 : DType::f32; }

Transformer load_model(const std::filesystem::path& folder, const LoadOptions& options) {
  require(options.activations == DType::f32 || options.activations == DType::bf16, folder.string(),
          ": activations are ", name_of(options.activations), ", expected f32 or bf16");
  TransformerConfig config = load_config(folder);
  auto checkpoint = std::make_shared<const Checkpoint>(Checkpoint::open(folder));
  config.memory = WeightMemory::stored;
  if (is_quantised(*checkpoint)) {
    require(!options.weights, folder.string(), ": is quantised already; leave --weights out");
    adapt_to_quantised(config, *checkpoint);
    Transformer model(std::move(config));
    fill_quantised(model.config(), model.parameters(), checkpoint);
    return model;
  }
  adapt_to_file(config, *checkpoint);
  const std::vector<Binding> bindings = bind(config, *checkpoint);
  check_bindings(bindings, *checkpoint);
  config.stored_type = checkpoint->tensor(bindings.front().stored).dtype;
  Transformer model(std::move(config));
  std::map<std::string, Value> parameters;
  for (const Parameter& parameter : model.parameters()) parameters[parameter.name] = parameter.value;
  require(parameters.size() == bindings.size(), "internal: ", bindings.size(), " bindings for ", parameters.size(),
          " parameters");
  for (const Binding& binding : bindings) {
    LoadOptions chosen = options;
    chosen.weights = weights_of(binding.parameter, model.config(), options);
    fill_parameter(*parameters.at(binding.parameter), binding, checkpoint, chosen);
  }
  return model;
}

}  // namespace rootdk
