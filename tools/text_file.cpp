#include "tools/text_file.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/check.h"

namespace rootdk::tools {

std::string read_text_file(const std::string& path) {
  require(!std::filesystem::is_directory(path), path, ": is a folder, not a text");
  std::ifstream file(path, std::ios::binary);
  require(file.is_open(), ErrorKind::file, path, ": cannot be opened");
  std::ostringstream text;
  if (file.peek() != std::ifstream::traits_type::eof()) text << file.rdbuf();
  require(!file.bad() && text.good(), ErrorKind::file, path, ": cannot be read");
  return std::move(text).str();
}

}  // namespace rootdk::tools
