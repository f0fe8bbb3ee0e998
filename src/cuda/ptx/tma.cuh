#pragma once

#include <cuda.h>

#include <cstdint>

namespace rootdk::cuda::ptx {

// L2 cache policies of the whole access, as the .L2::cache_hint operand encodes them.
inline constexpr std::uint64_t kEvictFirst = 0x12F0000000000000ull;
inline constexpr std::uint64_t kEvictNormal = 0x1000000000000000ull;
inline constexpr std::uint64_t kEvictLast = 0x14F0000000000000ull;

__device__ __forceinline__ void tma_prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// One box of a tensor of rank 4, starting at (c0, c1, c2, c3), innermost first. Elements outside arrive as zeros.
__device__ __forceinline__ void tma_load_4d(std::uint32_t destination, const CUtensorMap* map, std::uint32_t barrier,
                                            int c0, int c1, int c2, int c3, std::uint64_t l2_hint) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(l2_hint)
      : "memory");
}

// Stores one box; columns and rows outside the tensor are skipped. Call bulk_commit() afterwards.
__device__ __forceinline__ void tma_store_4d(const CUtensorMap* map, std::uint32_t source, int c0, int c1, int c2,
                                             int c3) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
               "r"(source), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
               : "memory");
}

}  // namespace rootdk::cuda::ptx
