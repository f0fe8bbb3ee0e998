#include "tools/text_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "core/check.h"

namespace rootdk::tools {
namespace {

constexpr std::size_t kLargestText = std::size_t{1} << 30;

// Of devices, a terminal and /dev/null come to an end.
bool ends(const std::string& device) {
  const int descriptor = ::open(device.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY);
  const bool terminal = descriptor >= 0 && isatty(descriptor) == 1;
  if (descriptor >= 0) ::close(descriptor);
  return terminal || device == "/dev/null";
}

}  // namespace

std::string read_text_file(const std::string& path) {
  require(!std::filesystem::is_directory(path), path, ": is a folder, not a text");
  require(!std::filesystem::is_character_file(path) || ends(path), path, ": is a device, not a text");
  std::ifstream file(path, std::ios::binary);
  require(file.is_open(), ErrorKind::file, path, ": cannot be opened");
  std::string text;
  std::vector<char> part(std::size_t{1} << 20);
  while (file.read(part.data(), static_cast<std::streamsize>(part.size())) || file.gcount() > 0) {
    text.append(part.data(), static_cast<std::size_t>(file.gcount()));
    // A device may never end.
    require(text.size() <= kLargestText, path, ": has more than ", kLargestText, " bytes, the most a text may have");
  }
  require(!file.bad(), ErrorKind::file, path, ": cannot be read");
  return text;
}

}  // namespace rootdk::tools
