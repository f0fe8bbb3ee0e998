#pragma once

#include <string>

namespace rootdk::tools {

// All bytes of a file. Throws rootdk::Error with the path where it is a folder or cannot be read.
std::string read_text_file(const std::string& path);

}  // namespace rootdk::tools
