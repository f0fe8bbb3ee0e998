#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace rootdk {

// A file that comes into being only when it is complete: written beside its target, flushed, then renamed over it. What
// was there before stays until then, and the destructor removes what was not committed. Throws rootdk::Error.
class PendingFile {
 public:
  explicit PendingFile(const std::filesystem::path& path);
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;
  ~PendingFile();

  void write(const void* data, std::size_t size);
  void commit();

  // Whether a file is named as one that was never committed: its process was killed.
  static bool is_leftover(const std::filesystem::path& path);

 private:
  unsigned mode() const;
  void flush_folder() const;
  void check(bool condition, std::string_view what) const;

  std::filesystem::path target_;
  std::string temporary_;
  int descriptor_ = -1;
};

}  // namespace rootdk
