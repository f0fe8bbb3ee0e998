#pragma once

// The language of CUDA as far as the emulated kernels speak it: threads of one block are fibers that take turns, and
// wait for each other by yielding.

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#undef __device__
#undef __global__
#undef __forceinline__
#undef __noinline__
#undef __launch_bounds__
#undef __grid_constant__
#undef __align__
#undef __shared__
#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes)

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

namespace rootdk::test::emulation {

inline constexpr int kMaxWarps = 8;

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

// Runs body once in each of `threads` fibers. Throws where none of them can go on.
void run_block(int threads, int block, const std::function<void()>& body);
// Lets the other threads of the block run.
void yield();
int block_threads();

// A barrier among a fixed number of threads.
void meet(int id, int threads);

// Every lane of the warp gives a word and gets those of all lanes.
using WarpWords = std::uint32_t[32];
const WarpWords& exchange(std::uint32_t word);

}  // namespace rootdk::test::emulation

// What the compiler brings along for device code.
inline rootdk::test::emulation::Index threadIdx, blockIdx, gridDim;

template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  return std::bit_cast<T>(rootdk::test::emulation::exchange(std::bit_cast<std::uint32_t>(value))[lane & 31]);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int step) {
  return __shfl_sync(mask, value, static_cast<int>(threadIdx.x & 31) ^ step);
}
inline bool __all_sync(unsigned, bool holds) {
  const auto& all = rootdk::test::emulation::exchange(holds);
  return std::all_of(std::begin(all), std::end(all), [](std::uint32_t x) { return x != 0; });
}
inline void __syncwarp() { rootdk::test::emulation::exchange(0); }
inline void __syncthreads() { rootdk::test::emulation::meet(0, rootdk::test::emulation::block_threads()); }

inline std::uint32_t __byte_perm(std::uint32_t low, std::uint32_t high, std::uint32_t selector) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(high) << 32 | low;
  std::uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const auto byte = static_cast<std::uint32_t>(bytes >> 8 * (selector >> 4 * i & 7) & 0xff);
    result |= byte << 8 * i;
  }
  return result;
}
inline std::uint32_t __umulhi(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::uint32_t>(static_cast<std::uint64_t>(a) * b >> 32);
}
inline float __uint_as_float(std::uint32_t bits) { return std::bit_cast<float>(bits); }
inline std::uint32_t __float_as_uint(float x) { return std::bit_cast<std::uint32_t>(x); }
inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline int __vimax3_s32(int a, int b, int c) { return std::max({a, b, c}); }
inline unsigned __vimax3_u32(unsigned a, unsigned b, unsigned c) { return std::max({a, b, c}); }
inline float __fdividef(float a, float b) { return a / b; }
template <class T>
T __ldg(const T* p) {
  return *p;
}
inline int atomicAdd(int* p, int x) { return std::exchange(*p, *p + x); }
using std::isfinite;
using std::max;
using std::min;

namespace rootdk::cuda::hopper {

// The kernels' dynamic shared memory; addresses in it begin at 0.
alignas(1024) inline std::uint8_t dynamic_shared[227 << 10];

}  // namespace rootdk::cuda::hopper
