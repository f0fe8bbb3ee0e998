#pragma once

// Zip archives as torch.save writes them, for tests and for the fuzzer.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace rootdk::test {

inline std::string little_endian(std::uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 255);
  return text;
}

// A zip archive of members that are stored as they are.
inline std::string zip(const std::vector<std::pair<std::string, std::string>>& members, int method = 0) {
  std::string file, directory;
  for (const auto& [name, content] : members) {
    const std::uint64_t offset = file.size();
    const std::string sizes = little_endian(content.size(), 4) + little_endian(content.size(), 4);
    const std::string common = little_endian(0, 2) + little_endian(static_cast<std::uint64_t>(method), 2) +
                               little_endian(0, 4) + little_endian(0, 4) + sizes + little_endian(name.size(), 2);
    const std::size_t padding = (64 - (file.size() + 30 + name.size()) % 64) % 64;
    file += "PK\3\4" + little_endian(20, 2) + common + little_endian(padding, 2) + name + std::string(padding, '\0');
    file += content;
    directory += "PK\1\2" + little_endian(20, 2) + little_endian(20, 2) + common + little_endian(0, 2) +
                 little_endian(0, 2) + little_endian(0, 2) + little_endian(0, 2) + little_endian(0, 4) +
                 little_endian(offset, 4) + name;
  }
  return file + directory + "PK\5\6" + little_endian(0, 4) + little_endian(members.size(), 2) +
         little_endian(members.size(), 2) + little_endian(directory.size(), 4) + little_endian(file.size(), 4) +
         little_endian(0, 2);
}

}  // namespace rootdk::test
