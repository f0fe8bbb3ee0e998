#pragma once

#include <cstddef>

namespace rootdk {

inline constexpr std::size_t kLargePage = std::size_t{1} << 21;

// Asks the system for large pages where they fit into the memory, which must not have been written to yet: a core that
// reads megabytes head by head would otherwise wait for the address of every 4 KiB. Only a hint: where the system
// refuses, everything still works.
void ask_for_large_pages(std::byte* memory, std::size_t bytes);

}  // namespace rootdk
