#include "models/quantised_checkpoint.h"

#include <algorithm>

#include "core/check.h"
#include "core/strided.h"
#include "models/write_text.h"

namespace rootdk {
namespace {

namespace fs = std::filesystem;

const char* const kWeightsKey = "rootdk_weights";
const char* const kRowScales = ".row_scales";
const char* const kBlockScales = ".block_scales";

DType dtype_of_format(WeightFormat format) {
  switch (format) {
    case WeightFormat::f32: return DType::f32;
    case WeightFormat::bf16: return DType::bf16;
    case WeightFormat::f16: return DType::f16;
    default: return DType::i8;
  }
}

// The shapes of a matrix of integers and of the scales of its blocks.
std::vector<std::int64_t> stored_shape(WeightFormat format, std::int64_t rows, std::int64_t columns) {
  const std::int64_t groups = groups_of(rows), blocks = blocks_of(columns), quads = kWeightBlock / kWeightQuad;
  if (format == WeightFormat::i8) return {groups, blocks * quads, kWeightGroup, kWeightQuad};
  if (format == WeightFormat::i4) return {groups, blocks, quads / 2, kWeightGroup, kWeightQuad};
  return {rows, columns};
}

std::vector<std::int64_t> block_scale_shape(std::int64_t rows, std::int64_t columns) {
  return {groups_of(rows), blocks_of(columns), kWeightGroup};
}

void add_matrix(std::vector<NamedTensor>& tensors, const std::string& name, const WeightMatrix& m) {
  const auto add = [&](const std::string& full, const void* data, DType dtype, std::vector<std::int64_t> shape) {
    tensors.push_back({full, ConstTensorView(data, dtype, shape)});
  };
  add(name, m.data, dtype_of_format(m.format), stored_shape(m.format, m.rows, m.columns));
  if (m.row_scales) add(name + kRowScales, m.row_scales, DType::f32, {m.rows});
  if (m.block_scales) add(name + kBlockScales, m.block_scales, DType::bf16, block_scale_shape(m.rows, m.columns));
}

// One tensor of the file, of the shape it must have.
ConstTensorView checked(const Checkpoint& checkpoint, const std::string& name,
                        std::initializer_list<std::string_view> types, std::span<const std::int64_t> shape) {
  require(checkpoint.contains(name), checkpoint.where(), ": ", name, " is missing");
  const std::string_view type = checkpoint.type_name(name);
  require(std::ranges::find(types, type) != types.end(), checkpoint.where(), ": ", name, " is ", type);
  const std::span<const std::int64_t> found = checkpoint.shape(name);
  require(std::ranges::equal(found, shape), checkpoint.where(), ": ", name, " has shape ", shape_text(found),
          ", but the config asks for ", shape_text(shape));
  return checkpoint.tensor(name);
}

WeightMatrix matrix_in(const Checkpoint& checkpoint, const Parameter& parameter) {
  const std::string& name = parameter.name;
  WeightMatrix m{.rows = parameter.value->rows(), .columns = parameter.value->width()};
  const bool blocks = checkpoint.contains(name + kBlockScales), rows = checkpoint.contains(name + kRowScales);
  require(!blocks || m.columns % kWeightBlock == 0, checkpoint.where(), ": ", name, " has ", m.columns,
          " columns, which blocks of ", kWeightBlock, " do not divide");
  m.format = blocks ? WeightFormat::i4 : rows ? WeightFormat::i8 : WeightFormat::f32;
  const std::vector<std::int64_t> shape = stored_shape(m.format, m.rows, m.columns);
  if (!blocks && !rows) {
    const ConstTensorView view = checked(checkpoint, name, {"F32", "BF16", "F16"}, shape);
    m.data = view.data;
    m.format = view.dtype == DType::bf16  ? WeightFormat::bf16
               : view.dtype == DType::f16 ? WeightFormat::f16
                                          : WeightFormat::f32;
    return m;
  }
  m.data = checked(checkpoint, name, {"I8"}, shape).data;
  if (blocks) {
    const std::vector<std::int64_t> scales = block_scale_shape(m.rows, m.columns);
    m.block_scales = static_cast<const std::uint16_t*>(checked(checkpoint, name + kBlockScales, {"BF16"}, scales).data);
  } else {
    const std::int64_t scales[] = {m.rows};
    m.row_scales = static_cast<const float*>(checked(checkpoint, name + kRowScales, {"F32"}, scales).data);
  }
  return m;
}

// The file names parameters as the model does, those of each block once.
void refuse_more_layers(const Checkpoint& checkpoint, const std::string& stack, const StackConfig& config) {
  std::size_t found = config.blocks.size();
  while (checkpoint.contains_below(stack + ".layers." + std::to_string(found) + ".")) ++found;
  require(found == config.blocks.size(), checkpoint.where(), ": the config asks for ", config.blocks.size(),
          " layers, and the weights have ", found, " (", stack, ".layers.", found - 1, ".*)");
}

}  // namespace

bool is_quantised(const Checkpoint& checkpoint) { return checkpoint.metadata().contains(kWeightsKey); }

void fill_quantised(const TransformerConfig& config, const Parameters& parameters,
                    const std::shared_ptr<const Checkpoint>& checkpoint) {
  refuse_more_layers(*checkpoint, "stack", config.stack);
  if (config.encoder) refuse_more_layers(*checkpoint, "encoder", *config.encoder);
  for (const Parameter& parameter : parameters) {
    Node& node = *parameter.value;
    if (!node.has_own_value()) {
      node.bind(std::make_shared<StoredMatrix>(
          StoredMatrix{.matrix = matrix_in(*checkpoint, parameter), .owner = checkpoint}));
      continue;
    }
    const ConstTensorView view = checked(*checkpoint, parameter.name, {"F32"}, node.shape());
    std::copy_n(view.as<float>(), node.elements(), node.data());
  }
}

namespace {

// What a quantised folder takes over from the one it is made of.
constexpr const char* kSettings[] = {"config.json",           "generation_config.json", "tokenizer.json",
                                     "tokenizer_config.json", "modules.json",           "sentence_bert_config.json",
                                     "1_Pooling/config.json"};

// The folder that a model is written to. Unless it is kept, it is left as it was found.
class OutputFolder {
 public:
  explicit OutputFolder(const fs::path& path) : path_(path) {
    std::error_code error;
    made_ = fs::create_directories(path, error);
    require(!error, ErrorKind::file, "quantize: ", path.string(), " cannot be made: ", error.message());
  }
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;
  ~OutputFolder() {
    if (kept_) return;
    std::error_code ignored;
    for (const char* file : kSettings) fs::remove(path_ / file, ignored);
    fs::remove(path_ / "1_Pooling", ignored);  // fails where it holds anything, as the next one does
    if (made_) fs::remove(path_, ignored);
  }
  void copy_settings(const fs::path& from) const {
    for (const char* file : kSettings) {
      if (!fs::exists(from / file)) continue;
      fs::create_directories((path_ / file).parent_path());
      fs::copy_file(from / file, path_ / file);
    }
  }
  void keep() { kept_ = true; }

 private:
  fs::path path_;
  bool made_ = false, kept_ = false;
};

}  // namespace

std::uint64_t write_quantised(const fs::path& folder, WeightFormat weights, const fs::path& out, Executor* executor) {
  require(weights == WeightFormat::i8 || weights == WeightFormat::i4, "quantize: ", name_of(weights),
          " is neither int8 nor int4");
  require(!fs::exists(out) || !fs::equivalent(folder, out), "quantize: ", out.string(), " is the model itself");
  require(!fs::exists(out) || (fs::is_directory(out) && fs::is_empty(out)), ErrorKind::file, "quantize: ", out.string(),
          " is there already and not an empty folder");
  require(!is_quantised(Checkpoint::open(folder)), "quantize: ", folder.string(), " is quantised already");
  OutputFolder output(out);
  require_writable(out / "model.safetensors");  // before the work, not after it
  const Transformer model = load_model(folder, {.weights = weights, .executor = executor});
  std::vector<NamedTensor> tensors;
  for (const Parameter& parameter : model.parameters()) {
    const Node& node = *parameter.value;
    if (node.has_own_value()) {
      tensors.push_back({parameter.name, node.value()});
    } else {
      add_matrix(tensors, parameter.name, matrix_of(node));
    }
  }
  output.copy_settings(folder);
  write_safetensors(out / "model.safetensors", tensors,
                    {{kWeightsKey, std::string(name_of(weights))},
                     {"rootdk_stored_type", std::string(name_of(model.config().stored_type))},
                     {"rootdk_tied_head", model.config().tied_head ? "1" : "0"}});
  output.keep();
  return fs::file_size(out / "model.safetensors");
}

}  // namespace rootdk
