#pragma once

// Online softmax on the accumulator layout of wgmma. A thread holds parts of two rows, r = 0 and, 8 rows below, r = 1;
// s[4 i + 2 r + e] is column 8 i + 2 (lane % 4) + e.

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/ptx/arithmetic.cuh"

namespace rootdk::cuda::hopper {

struct RowState {
  float m[2];  // running maximum of the scores; all four threads of a row agree
  float l[2];  // this thread's part of sum 2^y, where y = (s - m) in units of log2
  float a[2];  // this thread's part of sum y 2^y      (statistics)
  float b[2];  // this thread's part of sum 2^(2 y)    (statistics)
};

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Scheduling fence: a dummy store that ptxas cannot move past the wait. Without it ptxas moves the wait for products
// above arithmetic that does not use them. The store is volatile and its predicate, "a or b is NaN", depends on that
// arithmetic, so the arithmetic stays before the wait. The word it stores to is never read.
__device__ __forceinline__ void scheduling_fence(float a, float b, std::uint32_t word) {
  asm volatile("{.reg .pred lost; setp.nan.f32 lost, %0, %1; @lost st.volatile.shared.f32 [%2], %0;}" ::"f"(a), "f"(b),
               "r"(word)
               : "memory");
}

// The largest score of each row in this thread's part.
template <int Chains, int N>
__device__ __forceinline__ void row_maxima(const float (&s)[N], float (&maximum)[2]) {
  float chain[2][Chains];
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float x = s[4 * (i / 2) + 2 * r + i % 2];
      chain[r][i % Chains] = i < Chains ? x : fmaxf(chain[r][i % Chains], x);
    }
  }
#pragma unroll
  for (int width = Chains / 2; width > 0; width /= 2) {
#pragma unroll
    for (int i = 0; i < width; ++i) {
      chain[0][i] = fmaxf(chain[0][i], chain[0][i + width]);
      chain[1][i] = fmaxf(chain[1][i], chain[1][i + width]);
    }
  }
  maximum[0] = chain[0][0];
  maximum[1] = chain[1][0];
}

// The larger of row_maxima() and the bound. Floats that are not negative compare like integers, and one integer
// instruction takes the largest of three. If a row's result is negative, row_maxima() computes it again.
template <int Chains, int N>
__device__ __forceinline__ void row_maxima_above(const float (&s)[N], const float (&bound)[2], float (&maximum)[2]) {
  int chain[2][Chains];
#pragma unroll
  for (int i = 0; i < N / 4; ++i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      int& largest = chain[r][i % Chains];
      const int before = i < Chains ? __float_as_int(bound[r]) : largest;
      largest = __vimax3_s32(before, __float_as_int(s[4 * i + 2 * r]), __float_as_int(s[4 * i + 2 * r + 1]));
    }
  }
#pragma unroll
  for (int i = 1; i < Chains; ++i) {
    chain[0][0] = max(chain[0][0], chain[0][i]);
    chain[1][0] = max(chain[1][0], chain[1][i]);
  }
  maximum[0] = __int_as_float(chain[0][0]);
  maximum[1] = __int_as_float(chain[1][0]);
  if (min(chain[0][0], chain[1][0]) < 0) row_maxima<Chains>(s, maximum);
}

// So low that 2^y is 0, yet finite, so that y 2^y is 0 too.
inline constexpr float kLowestExponent = -1e4f;

// Compile-time choices of the softmax of one key tile.
struct SoftmaxStep {
  bool first = false;       // no earlier tile: the state is set, not advanced
  bool guarded = false;     // a row may have seen no key yet
  bool statistics = false;  // keep a and b
};

// Updates the running maxima with those of the tile. `Reduce` takes a maximum over the threads that share a row.
// `correction` receives the factors by which everything summed so far must be multiplied. `negated` receives what must
// be added to a scaled score: -(m * unit), or 0 while the row has seen no key.
template <SoftmaxStep Step, float (*Reduce)(float) = quad_max>
__device__ __forceinline__ void advance_maxima(const float (&tile_maximum)[2], float unit, RowState& state,
                                               float (&correction)[2], float (&negated)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float m = Reduce(tile_maximum[r]);
    const float before = state.m[r];
    if constexpr (!Step.first) m = fmaxf(m, before);
    float scaled = m * unit;
    if constexpr (Step.guarded) scaled = m == -INFINITY ? 0.f : scaled;
    negated[r] = -scaled;
    state.m[r] = m;
    if constexpr (Step.first) {
      correction[r] = 1.f;
    } else {
      float shift = fmaf(before, unit, -scaled);  // <= 0
      if constexpr (Step.statistics) shift = ptx::max_or_nan(shift, kLowestExponent);
      correction[r] = ptx::exp2_approximate(shift);
      if constexpr (Step.statistics) {
        state.a[r] = correction[r] * fmaf(shift, state.l[r], state.a[r]);
        state.b[r] *= correction[r] * correction[r];
      }
      state.l[r] *= correction[r];
    }
  }
}

// s of row r becomes 2^exponent(s, r), and its sums are added to the state. Partial sums start from zero and are added
// to the running ones at the end: this shortens dependent chains, which cost time because a warp issues in order and is
// nearly alone on its scheduler.
template <SoftmaxStep Step, int N, class Exponent>
__device__ __forceinline__ void exponentials_of(float (&s)[N], Exponent exponent, RowState& state) {
  float l[2][2] = {}, a[2][2] = {}, b[2][2] = {};
#pragma unroll
  for (int i = 0; i < N / 4; ++i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = s[4 * i + 2 * r + e];
        float y = exponent(x, r);
        if constexpr (Step.statistics && Step.guarded) y = ptx::max_or_nan(y, kLowestExponent);
        x = ptx::exp2_approximate(y);
        l[r][e] += x;
        if constexpr (Step.statistics) {
          a[r][e] = fmaf(x, y, a[r][e]);
          b[r][e] = fmaf(x, x, b[r][e]);
        }
      }
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    state.l[r] = (Step.first ? 0.f : state.l[r]) + (l[r][0] + l[r][1]);
    if constexpr (Step.statistics) {
      state.a[r] = (Step.first ? 0.f : state.a[r]) + (a[r][0] + a[r][1]);
      state.b[r] = (Step.first ? 0.f : state.b[r]) + (b[r][0] + b[r][1]);
    }
  }
}

// The same with exponents s * unit + negated.
template <SoftmaxStep Step, int N>
__device__ __forceinline__ void exponentials(float (&s)[N], float unit, const float (&negated)[2], RowState& state) {
  exponentials_of<Step>(
      s, [&](float x, int r) { return fmaf(x, unit, negated[r]); }, state);
}

// The accumulator layout of the weights is the operand layout of the next product: the registers of its k-step kk are
// the packed pairs of s[8 kk .. 8 kk + 7].
template <class Element, int N>
__device__ __forceinline__ void to_operand(const float (&s)[N], std::uint32_t (&weights)[N / 2]) {
#pragma unroll
  for (int i = 0; i < N / 2; ++i) weights[i] = ptx::pack<Element>(s[2 * i], s[2 * i + 1]);
}

// The same in e4m3. A register of the operand holds four neighbouring columns of a row, a thread of the accumulators
// two of each eight: inside every 16 keys, key 8 i + 2 t + e becomes column 4 t + 2 i + e (fp8_key_position()), and v
// is stored in that order.
template <int N>
__device__ __forceinline__ void to_e4m3_operand(const float (&s)[N], std::uint32_t (&weights)[N / 4]) {
#pragma unroll
  for (int i = 0; i < N / 4; ++i) {
    const float* even = &s[8 * (i / 2) + 2 * (i % 2)];  // keys 8 i of 16, and 4 accumulators on those of 8 i + 8
    weights[i] = ptx::pack_e4m3(even[0], even[1], even[4], even[5]);
  }
}

}  // namespace rootdk::cuda::hopper
