#pragma once

#include <cstdint>

namespace rootdk::cuda::hopper {

// Which buffer of a ring comes next, and the parity its barrier has then.
template <int Stages>
struct Ring {
  int stage = 0;
  std::uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == Stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace rootdk::cuda::hopper
