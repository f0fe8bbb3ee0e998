#pragma once

#include "cuda/ptx/address.cuh"

namespace rootdk::cuda::ptx {

// Blocks run one after another, so that a cluster has one block.
inline void cluster_sync() { __syncthreads(); }
inline std::uint32_t address_in_block(std::uint32_t own, int) { return own; }

// A kernel's static shared memory may lie before the dynamic one: offsets have a sign.
template <class T>
T load_cluster(std::uint32_t address) {
  T value;
  std::memcpy(&value, hopper::dynamic_shared + static_cast<std::int32_t>(address), sizeof value);
  return value;
}
inline float load_cluster_float(std::uint32_t address) { return load_cluster<float>(address); }
inline float4 load_cluster_float4(std::uint32_t address) { return load_cluster<float4>(address); }

}  // namespace rootdk::cuda::ptx
