#pragma once

#include "cuda/emulation/block.h"

namespace rootdk::cuda::ptx {

inline uint4 load_once(const void* pointer) {
  uint4 value;
  std::memcpy(&value, pointer, sizeof value);
  return value;
}

}  // namespace rootdk::cuda::ptx
