#pragma once

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/mbarrier.cuh"

namespace rootdk::cuda::ptx {

inline void copy_async_4(std::uint32_t destination, const void* source, bool valid) {
  if (valid) {
    std::memcpy(at(destination), source, 4);
  } else {
    std::memset(at(destination), 0, 4);
  }
}
inline void copy_async_16(std::uint32_t destination, const void* source, int valid) {
  std::memcpy(at(destination), source, static_cast<std::size_t>(valid));
  std::memset(at(destination) + valid, 0, static_cast<std::size_t>(16 - valid));
}
inline void copy_async_arrive(std::uint32_t barrier) { mbarrier_arrive(barrier); }
inline void copy_async_wait_all() {}

}  // namespace rootdk::cuda::ptx
