#pragma once

#include <map>
#include <stdexcept>

#include "cuda/emulation/block.h"

namespace rootdk::cuda::ptx {

// A phase ends when all have arrived and all announced bytes have come.
struct TransactionBarrier {
  int arrivals = 0, pending = 0;
  std::int64_t bytes = 0;
  unsigned phase = 0;

  void settle() {
    if (pending < 0) throw std::runtime_error("more arrivals at an mbarrier than it counts");
    if (pending == 0 && bytes == 0) ++phase, pending = arrivals;
  }
};
inline std::map<std::uint32_t, TransactionBarrier> barriers;  // by address

inline void mbarrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  barriers[barrier] = {.arrivals = static_cast<int>(arrivals), .pending = static_cast<int>(arrivals)};
}
inline void mbarrier_init_fence() {}
inline void mbarrier_arrive(std::uint32_t barrier) {
  --barriers.at(barrier).pending;
  barriers.at(barrier).settle();
}
inline void mbarrier_expect_bytes(std::uint32_t barrier, std::uint32_t bytes) {
  barriers.at(barrier).bytes += bytes;
  mbarrier_arrive(barrier);
}
inline void complete_bytes(std::uint32_t barrier, std::int64_t bytes) {
  barriers.at(barrier).bytes -= bytes;
  barriers.at(barrier).settle();
}
inline void mbarrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  while (barriers.at(barrier).phase % 2 == parity) test::emulation::yield();
}

}  // namespace rootdk::cuda::ptx
