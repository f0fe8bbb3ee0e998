#pragma once

namespace rootdk::cuda::ptx {

// The sources of all committed copies but the last Pending have been read and may be overwritten.
template <int Pending>
__device__ __forceinline__ void bulk_wait_read_all_but() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}

}  // namespace rootdk::cuda::ptx
