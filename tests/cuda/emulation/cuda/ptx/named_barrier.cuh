#pragma once

#include "cuda/emulation/block.h"

namespace rootdk::cuda::ptx {

inline void named_barrier_sync(int id, int threads) { test::emulation::meet(id, threads); }

}  // namespace rootdk::cuda::ptx
