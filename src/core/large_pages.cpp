#include "core/large_pages.h"

#include <sys/mman.h>

#include <cstdint>

namespace rootdk {

void ask_for_large_pages(std::byte* memory, std::size_t bytes) {
  const std::size_t before = (kLargePage - reinterpret_cast<std::uintptr_t>(memory) % kLargePage) % kLargePage;
  if (bytes < before + kLargePage) return;
  madvise(memory + before, (bytes - before) / kLargePage * kLargePage, MADV_HUGEPAGE);
}

}  // namespace rootdk
