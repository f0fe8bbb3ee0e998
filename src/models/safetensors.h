#pragma once

// The safetensors format: 8 bytes with the length of the header (little-endian), a JSON header that names each tensor's
// type, shape and place, then the data. Reading maps the file and checks everything the header says before anybody
// looks at the data; writing puts a finished file in place in one step.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rootdk/tensor.h"

namespace rootdk {

class SafetensorsFile {
 public:
  // Both throw rootdk::Error, with the file's name and the values, where the header does not describe the file exactly.
  static SafetensorsFile open(const std::filesystem::path& path);
  // Reads a file that already lies in memory, which must outlive the result; `name` is what messages call it.
  static SafetensorsFile parse(std::span<const std::byte> bytes, std::string name);

  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;
  ~SafetensorsFile();

  const std::vector<std::string>& names() const;  // in the order of their data
  bool contains(std::string_view name) const;

  // A view into the file, contiguous, valid as long as this object. A scalar has the shape [1]. Two cases are views of
  // a copy that this object keeps: data that is not aligned to its type, and U8, which is widened to i32. Types that
  // have no DType (F8, U16, ...) are refused here, not on opening. May be called from several threads.
  ConstTensorView tensor(std::string_view name) const;

  // The type as the file spells it ("BF16") and the exact shape, whatever the type.
  std::string_view type_name(std::string_view name) const;
  std::span<const std::int64_t> shape(std::string_view name) const;

  const std::map<std::string, std::string>& metadata() const;

  // Gives back the memory of a tensor that is not needed for now; it is read again when it is touched.
  void release(std::string_view name) const;

 private:
  struct Content;
  explicit SafetensorsFile(std::unique_ptr<Content> content);

  std::unique_ptr<Content> content_;
};

struct NamedTensor {
  std::string name;
  ConstTensorView view;  // on the CPU, any strides
};

// Writes a temporary file beside `path`, flushes it to the disk and renames it: after any failure the old file, or its
// absence, is as before and the temporary file is gone. Throws rootdk::Error.
void write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace rootdk
