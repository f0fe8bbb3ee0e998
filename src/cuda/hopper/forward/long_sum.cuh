#pragma once

// The output of a long row in e4m3. P V adds to its accumulators with few digits, so that long sums are taken in two
// levels: every kFp8TilesOfSum key tiles the accumulators are added in f32 to sums in local memory, and begin anew.

#include <cuda_runtime.h>

#include "cuda/ptx/arithmetic.cuh"

namespace rootdk::cuda::hopper {

// N accumulators of a thread; those with i / 2 % 2 = r belong to its row r.
template <int N>
class LongSum {
 public:
  // Moves the accumulators into the sums. Both are relative to the rows' maxima m, in units of log2.
  __device__ __forceinline__ void take(float (&o)[N], const float (&m)[2]) {
    rescale_to(m);
    add_to(o);
#pragma unroll
    for (int i = 0; i < N; ++i) sums_[i] = o[i];
    m_[0] = m[0];
    m_[1] = m[1];
    any_ = true;
  }
  // The rows' maxima are m now.
  __device__ __forceinline__ void rescale_to(const float (&m)[2]) {
    if (!any_) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) scale_[r] = ptx::exp2_approximate(m_[r] - m[r]);
  }
  __device__ __forceinline__ void add_to(float (&o)[N]) const {
    if (!any_) return;
#pragma unroll
    for (int i = 0; i < N; ++i) o[i] = fmaf(sums_[i], scale_[i / 2 % 2], o[i]);
  }
  __device__ __forceinline__ void clear() { any_ = false; }

 private:
  bool any_ = false;
  float m_[2], scale_[2];
  volatile float sums_[N];  // volatile keeps it out of the registers
};

}  // namespace rootdk::cuda::hopper
