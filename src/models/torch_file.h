#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "models/mapped_file.h"
#include "models/tensor_pickle.h"

namespace rootdk {

// pytorch_model.bin: a zip archive with a pickle of the tensors and their storages beside it, mapped. Older files,
// which are pickles alone, are refused with a word on how to convert them.
class TorchFile {
 public:
  static TorchFile open(const std::filesystem::path& path);
  // Reads a file that already lies in memory, which must outlive the result.
  static TorchFile parse(std::span<const std::byte> bytes, std::string name);

  const std::map<std::string, PickledTensor>& tensors() const { return tensors_; }
  // Contiguous, valid as long as this object. Throws rootdk::Error where the tensor has other strides.
  ConstTensorView tensor(const std::string& name) const;
  // Gives back the memory of a tensor that is not needed for now; it is read again when it is touched.
  void release(const std::string& name) const;

 private:
  explicit TorchFile(std::string name) : name_(std::move(name)) {}
  void read(std::span<const std::byte> bytes);

  std::string name_;
  std::shared_ptr<const MappedFile> file_;
  std::map<std::string, PickledTensor> tensors_;
  std::map<std::string, std::span<const std::byte>> storages_;
};

}  // namespace rootdk
