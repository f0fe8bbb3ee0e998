#include "models/torch_file.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/check.h"
#include "models/zip_archive.h"

namespace rootdk {
namespace {

// Elements of a shape, or an error where they, or the strides of an empty tensor, overflow.
std::uint64_t element_count(const std::string& where, const PickledTensor& tensor) {
  std::uint64_t count = 1, positive = 1;  // positive: without the sizes of 0
  for (const std::int64_t size : tensor.shape) {
    require(size >= 0 && (size == 0 || positive <= (std::uint64_t{1} << 60) / static_cast<std::uint64_t>(size)), where,
            ": has shape ", shape_text(tensor.shape));
    count *= static_cast<std::uint64_t>(size);
    positive *= static_cast<std::uint64_t>(std::max<std::int64_t>(size, 1));
  }
  return count;
}

bool is_contiguous(const PickledTensor& tensor) {
  std::int64_t step = 1;
  for (std::size_t i = tensor.shape.size(); i-- > 0;) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != step) return false;
    step *= tensor.shape[i];
  }
  return true;
}

}  // namespace

TorchFile TorchFile::open(const std::filesystem::path& path) {
  TorchFile file(path.string());
  file.file_ = std::make_shared<const MappedFile>(path);
  file.read(file.file_->bytes());
  return file;
}

TorchFile TorchFile::parse(std::span<const std::byte> bytes, std::string name) {
  TorchFile file(std::move(name));
  file.read(bytes);
  return file;
}

void TorchFile::read(std::span<const std::byte> bytes) {
  const bool zip = bytes.size() > 4 && bytes[0] == std::byte{'P'} && bytes[1] == std::byte{'K'};
  require(zip, name_,
          ": is no zip archive, as torch.save writes it since version 1.6; load and save it again, or convert "
          "it to safetensors");
  const auto members = stored_members(bytes, name_);
  const std::string pickle = "/data.pkl", data = "/data/";
  std::string folder;
  for (const auto& [member, content] : members) {
    if (!member.ends_with(pickle)) continue;
    folder = member.substr(0, member.size() - pickle.size());
    tensors_ = read_tensor_pickle(content, name_);
  }
  require(!folder.empty(), name_, ": has no data.pkl");
  for (const auto& [member, content] : members) {
    if (member.starts_with(folder + data)) storages_[member.substr(folder.size() + data.size())] = content;
    const bool order = member == folder + "/byteorder";
    require(!order || content.empty() || content[0] == std::byte{'l'}, name_, ": its numbers are big-endian");
  }
  for (const auto& [tensor, pickled] : tensors_) {
    const std::string where = name_ + ": tensor '" + tensor + "'";
    const auto storage = storages_.find(pickled.storage);
    require(storage != storages_.end(), where, " has no storage ", pickled.storage);
    require(pickled.shape.size() == pickled.strides.size() && pickled.shape.size() <= kMaxRank, where, " has ",
            pickled.shape.size(), " sizes and ", pickled.strides.size(), " strides");
    const std::uint64_t count = element_count(where, pickled);
    const std::uint64_t room = storage->second.size() / size_of(pickled.dtype);
    require(!is_contiguous(pickled) || (pickled.offset >= 0 && static_cast<std::uint64_t>(pickled.offset) <= room &&
                                        count <= room - static_cast<std::uint64_t>(pickled.offset)),
            where, " has ", count, " elements from ", pickled.offset, " on, its storage ", room);
  }
}

void TorchFile::release(const std::string& name) const {
  if (file_) file_->release(storages_.at(tensors_.at(name).storage));
}

ConstTensorView TorchFile::tensor(const std::string& name) const {
  const auto found = tensors_.find(name);
  require(found != tensors_.end(), name_, ": has no tensor '", name, "'");
  const PickledTensor& pickled = found->second;
  require(is_contiguous(pickled), name_, ": tensor '", name, "' is not contiguous, which is not supported");
  const std::byte* data =
      storages_.at(pickled.storage).data() + pickled.offset * static_cast<std::int64_t>(size_of(pickled.dtype));
  require(reinterpret_cast<std::uintptr_t>(data) % size_of(pickled.dtype) == 0, name_, ": tensor '", name,
          "' is not aligned to its elements");
  static constexpr std::int64_t kScalar[] = {1};
  const std::span<const std::int64_t> shape =
      pickled.shape.empty() ? std::span<const std::int64_t>(kScalar) : std::span<const std::int64_t>(pickled.shape);
  return ConstTensorView(static_cast<const void*>(data), pickled.dtype, shape);
}

}  // namespace rootdk
