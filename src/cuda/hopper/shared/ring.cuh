#pragma once

#include <cstdint>

namespace rootdk::cuda::hopper {

// The next buffer of a ring of stages, and the parity of its barrier.
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
