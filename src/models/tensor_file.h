#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rootdk/tensor.h"

namespace rootdk {

// A file with tensors by name, whatever its format. Views are valid as long as the object.
class TensorFile {
 public:
  virtual ~TensorFile() = default;
  virtual std::vector<std::string> names() const = 0;
  virtual bool contains(const std::string& name) const = 0;
  virtual std::string_view type_name(const std::string& name) const = 0;  // as safetensors spells it: "BF16"
  virtual std::span<const std::int64_t> shape(const std::string& name) const = 0;
  virtual ConstTensorView tensor(const std::string& name) const = 0;
  virtual const std::map<std::string, std::string>& metadata() const = 0;
  // Gives back the memory of a tensor that is not needed for now; it is read again when it is touched.
  virtual void release(const std::string& name) const = 0;
};

// safetensors, or what torch.save writes where the name ends in .bin. Throws rootdk::Error.
std::shared_ptr<const TensorFile> open_tensor_file(const std::filesystem::path& path);

}  // namespace rootdk
