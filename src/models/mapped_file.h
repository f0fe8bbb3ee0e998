#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace rootdk {

// A whole regular file, mapped read-only. Pages are read when they are touched, and shared between processes.
class MappedFile {
 public:
  // Throws rootdk::Error that names the path and the reason.
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }
  // Gives back the memory of a part that is not needed for now; it is read again when it is touched. Bytes outside the
  // file are left alone.
  void release(std::span<const std::byte> part) const;

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace rootdk
