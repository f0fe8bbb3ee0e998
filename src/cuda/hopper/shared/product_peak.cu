// The rate of matrix products alone: the peak that attention on this device is compared with.

#include <cuda_bf16.h>

#include "cuda/hopper/shared/product_peak.h"
#include "cuda/hopper/shared/products.cuh"
#include "cuda/launch/check.h"
#include "cuda/launch/device.h"
#include "cuda/launch/kernel.h"
#include "cuda/ptx/address.cuh"
#include "cuda/ptx/fence.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "rootdk/export.h"

namespace rootdk::cuda::hopper {
namespace {

constexpr int kWarpgroups = 2;
constexpr int kRows = 64, kColumns = 256, kDepth = 64;  // of one warpgroup's product: one panel of 64 columns deep
constexpr int kPanelBytes = (kWarpgroups * kRows + kColumns) * 128;
constexpr int kSharedBytesOfPeak = kPanelBytes + 1024;
constexpr double kFlopsOfRound = 2.0 * kWarpgroups * kRows * kColumns * kDepth;

__global__ void __launch_bounds__(128 * kWarpgroups, 1) product_kernel(float* sums, int rounds) {
  extern __shared__ std::uint8_t dynamic_shared[];
  const std::uint32_t base = (ptx::shared_address(dynamic_shared) + 1023) & ~1023u;
  // Numbers of both signs near 1: products of zeros draw less power and run faster than real ones.
  for (std::uint32_t i = threadIdx.x; i < kPanelBytes / 16; i += blockDim.x) {
    const int pair = static_cast<int>((i * 2654435761u & 0x807f807fu) | 0x3f003f00u);
    ptx::store_shared(base + 16 * i, make_int4(pair, pair ^ 0x55, pair ^ 0x330000, pair ^ 0x11));
  }
  ptx::fence_async_shared();
  __syncthreads();
  const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
  const std::uint64_t a = ptx::matrix_descriptor(base + warpgroup * kRows * 128, 16, kRowGroupBytes);
  const std::uint64_t b = ptx::matrix_descriptor(base + kWarpgroups * kRows * 128, 16, kRowGroupBytes);
  float d[kColumns / 2] = {};
#pragma unroll 1
  for (int round = 0; round < rounds; ++round) {
    ptx::pin(d);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kDepth / 16; ++step) {
      ptx::Wgmma<__nv_bfloat16, kColumns>::ss<0, 0>(d, ptx::advance(a, 32 * step), ptx::advance(b, 32 * step));
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin(d);
  }
  float sum = 0.f;
  for (const float x : d) sum += x;
  sums[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

}  // namespace

ROOTDK_API std::size_t product_peak_workspace(int device) {
  return static_cast<std::size_t>(device_traits(device).multiprocessors) * 128 * kWarpgroups * sizeof(float);
}

ROOTDK_API double launch_product_peak(int device, void* workspace, int rounds, cudaStream_t stream) {
  const int blocks = device_traits(device).multiprocessors;
  launch_kernel({.function = reinterpret_cast<const void*>(&product_kernel),
                 .name = "the product peak",
                 .grid = dim3(static_cast<unsigned>(blocks)),
                 .block = dim3(128 * kWarpgroups),
                 .shared_bytes = kSharedBytesOfPeak,
                 .stream = stream,
                 .device = device},
                static_cast<float*>(workspace), rounds);
  return kFlopsOfRound * blocks * rounds;
}

}  // namespace rootdk::cuda::hopper
