#pragma once

// Scores in the accumulator layout of s^T: thread t of quad g has the rows 2 t and 2 t + 1 of eight, and the keys g and
// g + 8 of every sixteen.

#include "cuda/hopper/shared/logit_terms.cuh"

namespace rootdk::cuda::hopper {

// of[4 i + 2 r + e] is row r and key 16 i + 8 e, counted from the thread's first: the order in which the functions of
// softmax.cuh expect rows.
template <int N>
struct KeyScores {
  float of[N];
};

template <int N, class Body>
__device__ __forceinline__ void for_each_score(KeyScores<N>& s, Body body) {
#pragma unroll
  for (int i = 0; i < N; ++i) body(s.of[i], i / 2 % 2, i / 4 * 16 + i % 2 * 8);
}
template <int N>
constexpr int last_offset(const KeyScores<N>&) {
  return 4 * N - 8;
}

// Reductions over the threads that share the rows; none, of what is reduced already.
__device__ __forceinline__ float itself(float x) { return x; }
__device__ __forceinline__ float column_max(float x) {
#pragma unroll
  for (int step = 4; step < 32; step *= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}
__device__ __forceinline__ float column_sum(float x) {
#pragma unroll
  for (int step = 4; step < 32; step *= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

}  // namespace rootdk::cuda::hopper
