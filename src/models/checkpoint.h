#pragma once

// A folder in the transformers layout: config.json and model.safetensors, or pytorch_model.bin, or shards of either
// with an index.

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "layers/stored_matrix.h"
#include "models/architectures.h"
#include "models/safetensors.h"
#include "models/tensor_file.h"
#include "models/transformer.h"

namespace rootdk {

// The tensors of a folder, whichever file each lies in.
class Checkpoint {
 public:
  static Checkpoint open(const std::filesystem::path& folder);

  bool contains(const std::string& name) const { return places_.contains(name); }
  // Whether the name of some tensor begins so.
  bool contains_below(const std::string& prefix) const {
    const auto place = places_.lower_bound(prefix);
    return place != places_.end() && place->first.starts_with(prefix);
  }
  std::span<const std::int64_t> shape(const std::string& name) const { return file_of(name).shape(name); }
  std::string_view type_name(const std::string& name) const { return file_of(name).type_name(name); }
  ConstTensorView tensor(const std::string& name) const { return file_of(name).tensor(name); }
  // Gives back the memory of a tensor that is not needed for now; it is read again when it is touched.
  void release(const std::string& name) const { file_of(name).release(name); }
  const std::string& where() const { return where_; }
  const std::map<std::string, std::string>& metadata() const { return files_.front()->metadata(); }

 private:
  const TensorFile& file_of(const std::string& name) const { return *files_[places_.at(name)]; }
  void read_shards(const std::filesystem::path& folder, const std::filesystem::path& index);

  std::string where_;
  std::vector<std::shared_ptr<const TensorFile>> files_;
  std::map<std::string, std::size_t> places_;
};

// Where the rows of a parameter lie in a stored tensor: row r is stored row offset + r / group * stride + r % group.
struct RowMap {
  std::int64_t offset = 0, group = 0, stride = 0;  // group 0: all rows follow each other
};

// One parameter and the stored tensor that fills it.
struct Binding {
  std::string parameter;                   // as Transformer::parameters() names it
  std::string stored;                      // as the file names it
  std::vector<std::int64_t> stored_shape;  // what the file must have
  RowMap rows{};
  bool transposed = false;  // stored [in, out]
  std::int64_t entry = -1;  // of the first dimension (an expert); -1: the whole tensor
};

// Every parameter of the config with the tensor it comes from. Nothing is allocated, nothing read. Throws rootdk::Error
// where the checkpoint has more layers than the config.
std::vector<Binding> bind(const TransformerConfig& config, const Checkpoint& checkpoint);
// Throws rootdk::Error where a tensor is missing, is not F32, F16 or BF16, or has another shape; names all that are
// wrong (the first few of many).
void check_bindings(const std::vector<Binding>& bindings, const Checkpoint& checkpoint);

// How a model is loaded.
struct LoadOptions {
  // Not given: the matrices stay in the type they have in the file and are read where it is mapped, so that nothing is
  // copied but what the file keeps in another order. int8 and int4 are made from them here; a checkpoint that
  // write_quantised() has made is read as it is. The file must not be shortened while the model lives.
  std::optional<WeightFormat> weights{};
  // What matrices of bf16 multiply: as it is (f32), or rounded to bf16, which processors with products of bf16 do twice
  // as fast for many tokens at once. Other matrices do not look at it.
  DType activations = DType::f32;
  Executor* executor = nullptr;  // of what is made here
};

// What generation does with matrices of bf16 where nothing is said: bf16 activations where the processor multiplies
// bf16 by bf16, else f32. See docs/decisions/0026.
DType generation_activations();

// Config, check, then the weights.
Transformer load_model(const std::filesystem::path& folder, const LoadOptions& options = {});

}  // namespace rootdk
