#pragma once

// What the kernels of the preparation share: where results go, vectors of eight columns, the scale of e4m3 numbers.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "cuda/hopper/shared/fp8_layout.h"
#include "cuda/hopper/shared/params.h"
#include "cuda/hopper/shared/work_tiles.cuh"
#include "cuda/ptx/arithmetic.cuh"
#include "cuda/ptx/pair_extrema.cuh"

namespace rootdk::cuda::hopper::preparation {

inline constexpr int kThreads = 256;
inline constexpr int kChunk = 256;    // keys of which one block takes sums and maxima
inline constexpr int kVector = 8;     // columns of a thread: 16 bytes of a row
inline constexpr int kQueries = 128;  // queries of an item

// Threads that share a row: the first power of two with enough columns.
constexpr int lanes_of(int head_dim) { return head_dim <= 64 ? 8 : head_dim <= 128 ? 16 : 32; }
// Vectors of a thread when a block of threads holds a tile of keys: 128 keys of 64 columns, 192 of 128, 128 of 192, or
// 96 of 256.
constexpr int vectors_of(int lanes) { return lanes == 8 ? 4 : lanes == 16 ? 12 : 16; }

// Where the results go: the pointers of Fp8Workspace.
struct Prepared {
  std::uint8_t *q, *k, *v;
  float2* q_units;
  float *k_scale, *v_columns, *v_multiplier, *mean_key;
  float4* partials;
  int* progress;  // [1 + planes], zero at the start: items taken; items of columns that are done, by plane
  int head_dim;   // of the kernel; columns past those of the tensors are zeros
  int block_kv, key_blocks, chunks;
};

// One sequence's rows in the tensors.
struct Rows {
  int batch, q_begin, q_len, kv_begin, kv_len;
};
__device__ __forceinline__ Rows rows_of(const ForwardParams& p, int sequence) {
  if (p.q_starts.data) {
    const PackedRows q = packed_rows(p.q_starts, sequence, p.q_rows),
                     kv = packed_rows(p.kv_starts, sequence, p.kv_rows);
    return {0, q.begin, q.len, kv.begin, kv.len};
  }
  return {sequence, 0, p.q_len, 0, p.kv_lengths.data ? visible_keys(p, sequence) : p.kv_len};
}

__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

// Rows of one head of a tensor: `count` of them from `begin` on.
struct HeadRows {
  int batch, head, begin, count;
};
// Eight columns of a row, in 16 bits: words of two.
inline constexpr int kWords = kVector / 2;
struct alignas(16) Vector {
  std::uint32_t word[kWords];
};

// Vectors of N rows. row_at(n) counts from `begin`; rows past the last come as copies of it. Zeros past `columns`, and
// where there is no row. One branch around all loads, so that they are under way together.
template <class Element, int N, class RowAt>
__device__ __forceinline__ void load_vectors(const DeviceTensor& t, const HeadRows& rows, int column, int columns,
                                             RowAt row_at, Vector (&raw)[N]) {
#pragma unroll
  for (int n = 0; n < N; ++n) raw[n] = {};
  if (column >= columns || rows.count <= 0) return;
  const Element* const from = static_cast<const Element*>(t.data) + rows.batch * t.batch_stride +
                              rows.head * t.head_stride + rows.begin * t.row_stride + column;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const uint4 four = __ldg(reinterpret_cast<const uint4*>(from + min(row_at(n), rows.count - 1) * t.row_stride));
    raw[n] = {{four.x, four.y, four.z, four.w}};
  }
}

template <class Element>
__device__ __forceinline__ float2 floats_of(std::uint32_t word) {
  Element elements[2];
  memcpy(static_cast<void*>(elements), &word, sizeof(word));
  return make_float2(to_float(elements[0]), to_float(elements[1]));
}
template <class Element>
__device__ __forceinline__ void to_floats(const Vector& raw, float (&x)[kVector]) {
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const float2 pair = floats_of<Element>(raw.word[i]);
    x[2 * i] = pair.x;
    x[2 * i + 1] = pair.y;
  }
}

// Whether all elements of the vectors are finite: 0 times infinity or NaN is NaN, which a sum keeps.
template <class Element, int N>
__device__ __forceinline__ bool all_finite(const Vector (&raw)[N]) {
  std::uint32_t probe[2] = {};
#pragma unroll
  for (int i = 0; i < N * kWords; ++i) {
    probe[i % 2] = ptx::fma_pair<Element>(raw[i / kWords].word[i % kWords], 0, probe[i % 2]);
  }
  return ((probe[0] | probe[1]) & 0x7fff7fff) == 0;
}

// e4m3 has no infinity: what is not finite becomes NaN.
template <int N>
__device__ __forceinline__ void infinities_to_nan(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = isfinite(x[i]) ? x[i] : NAN;
}

// What x is multiplied by so that `largest` becomes the largest e4m3 number, and its inverse.
struct Fp8Scale {
  float multiplier, scale;
};
__device__ __forceinline__ Fp8Scale fp8_scale(float largest) {
  const float scale = largest * (1.f / kFp8Largest);
  if (scale < 0x1p-126f) return {1.f, 1.f};
  return {ptx::reciprocal_approximate(scale), scale};
}

__device__ __forceinline__ uint2 pack8(const float (&x)[kVector]) {
  return make_uint2(ptx::pack_e4m3(x[0], x[1], x[2], x[3]), ptx::pack_e4m3(x[4], x[5], x[6], x[7]));
}

// Eight columns of one of the arrays over columns; zeros past those of the kernel.
__device__ __forceinline__ void load_columns(const float* from, int column, int head_dim, float (&x)[kVector]) {
#pragma unroll
  for (int i = 0; i < kVector; ++i) x[i] = column < head_dim ? from[column + i] : 0.f;
}

// Shared memory of a block, in words.
inline constexpr int kSharedWords = 128 * 64;

}  // namespace rootdk::cuda::hopper::preparation
