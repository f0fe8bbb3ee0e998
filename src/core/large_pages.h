#pragma once

#include <cstddef>

namespace rootdk {

inline constexpr std::size_t kLargePage = std::size_t{1} << 21;

// Asks the system for large pages where they fit into the memory, which nobody has written to yet: a core that walks
// through megabytes in steps of a head would otherwise wait for the address of every 4 KiB. A wish: refused, everything
// still works.
void ask_for_large_pages(std::byte* memory, std::size_t bytes);

}  // namespace rootdk
