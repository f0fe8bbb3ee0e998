#pragma once

#include "cuda/emulation/block.h"

namespace rootdk::cuda::ptx {

inline std::uint8_t* at(std::uint32_t address) { return hopper::dynamic_shared + address; }
inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(static_cast<const std::uint8_t*>(pointer) - hopper::dynamic_shared);
}

template <class T>
T load(std::uint32_t address) {
  T value;
  std::memcpy(&value, at(address), sizeof value);
  return value;
}
inline void store_shared(std::uint32_t address, int4 value) { std::memcpy(at(address), &value, sizeof value); }
inline int4 load_shared_int4(std::uint32_t address) { return load<int4>(address); }
inline float2 load_shared_float2(std::uint32_t address) { return load<float2>(address); }

}  // namespace rootdk::cuda::ptx
