#pragma once

namespace rootdk::cuda::ptx {

// Returns once all committed copies but the last Pending have read their sources, which may then be overwritten.
template <int Pending>
__device__ __forceinline__ void bulk_wait_read_all_but() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}

}  // namespace rootdk::cuda::ptx
