#include "models/tensor_file.h"

#include "core/check.h"
#include "models/safetensors.h"
#include "models/torch_file.h"

namespace rootdk {
namespace {

class Safetensors final : public TensorFile {
 public:
  explicit Safetensors(const std::filesystem::path& path) : file_(SafetensorsFile::open(path)) {}
  std::vector<std::string> names() const override { return file_.names(); }
  bool contains(const std::string& name) const override { return file_.contains(name); }
  std::string_view type_name(const std::string& name) const override { return file_.type_name(name); }
  std::span<const std::int64_t> shape(const std::string& name) const override { return file_.shape(name); }
  ConstTensorView tensor(const std::string& name) const override { return file_.tensor(name); }
  const std::map<std::string, std::string>& metadata() const override { return file_.metadata(); }
  void release(const std::string& name) const override { file_.release(name); }

 private:
  SafetensorsFile file_;
};

class Torch final : public TensorFile {
 public:
  explicit Torch(const std::filesystem::path& path) : file_(TorchFile::open(path)) {}
  std::vector<std::string> names() const override {
    std::vector<std::string> all;
    for (const auto& [name, tensor] : file_.tensors()) all.push_back(name);
    return all;
  }
  bool contains(const std::string& name) const override { return file_.tensors().contains(name); }
  std::string_view type_name(const std::string& name) const override {
    switch (file_.tensors().at(name).dtype) {
      case DType::f32: return "F32";
      case DType::f16: return "F16";
      case DType::bf16: return "BF16";
      case DType::f64: return "F64";
      case DType::i32: return "I32";
      case DType::i64: return "I64";
      case DType::i8: return "I8";
      default: return "BOOL";
    }
  }
  std::span<const std::int64_t> shape(const std::string& name) const override { return file_.tensors().at(name).shape; }
  ConstTensorView tensor(const std::string& name) const override { return file_.tensor(name); }
  const std::map<std::string, std::string>& metadata() const override { return none_; }
  void release(const std::string& name) const override { file_.release(name); }

 private:
  TorchFile file_;
  std::map<std::string, std::string> none_;
};

}  // namespace

std::shared_ptr<const TensorFile> open_tensor_file(const std::filesystem::path& path) {
  if (path.extension() == ".bin") return std::make_shared<Torch>(path);
  return std::make_shared<Safetensors>(path);
}

}  // namespace rootdk
