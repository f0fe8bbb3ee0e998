#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>

namespace rootdk {

// The members of a zip archive that lies in memory, none of them compressed: name to bytes. Everything the archive says
// is checked against its size. Throws rootdk::Error; `where` is what messages call the file.
std::map<std::string, std::span<const std::byte>> stored_members(std::span<const std::byte> archive,
                                                                 const std::string& where);

}  // namespace rootdk
