#pragma once

#include <cstdint>

namespace rootdk::cuda::ptx {

// Counts up to limit - 1 and then begins at 0 again. Returns the count before. What the block's threads did before they
// counted is visible to the thread that counts last.
__device__ __forceinline__ std::uint32_t count_shared(std::uint32_t address, std::uint32_t limit) {
  std::uint32_t before;
  asm volatile("atom.acq_rel.cta.shared::cta.inc.u32 %0, [%1], %2;"
               : "=r"(before)
               : "r"(address), "r"(limit - 1)
               : "memory");
  return before;
}

}  // namespace rootdk::cuda::ptx
