#pragma once

#include <filesystem>
#include <string_view>

namespace rootdk {

// Writes a temporary file beside `path` and renames it, so that `path` is always a whole file. Throws rootdk::Error.
void write_text(const std::filesystem::path& path, std::string_view text);

// Throws what writing to `path` would throw if it cannot be done, for work that takes long before it writes.
void require_writable(const std::filesystem::path& path);

}  // namespace rootdk
