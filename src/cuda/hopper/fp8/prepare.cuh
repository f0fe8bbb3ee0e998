#pragma once

// The kernels of the preparation: means and scales by column, then e4m3 numbers; and what those numbers stand for.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>

#include "cuda/hopper/shared/fp8_layout.h"
#include "cuda/hopper/shared/logit_terms.cuh"
#include "cuda/hopper/shared/params.h"
#include "cuda/hopper/shared/work_tiles.cuh"
#include "cuda/ptx/arithmetic.cuh"

namespace rootdk::cuda::hopper::preparation {

inline constexpr int kThreads = 256;
inline constexpr int kChunk = 256;               // keys of which one block takes sums and maxima
inline constexpr int kVector = 8;                // columns of a thread
inline constexpr int kQueries = 128;             // queries of a block of quantize_kernel
inline constexpr int kMostElements = 192 * 128;  // of a key tile

// Where the results go: the pointers of Fp8Workspace.
struct Prepared {
  std::uint8_t *q, *k, *v;
  float *q_unit, *q_shift, *k_scale, *v_scale, *v_multiplier, *mean_key, *mean_value;
  float4* partials;
  int head_dim;  // of the kernel; columns past those of the tensors are zeros
  int block_kv, key_blocks, chunks;
};

__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

// Eight columns of a row, zeros past `columns`.
template <class Element>
__device__ __forceinline__ void load_vector(const DeviceTensor& t, int batch, int head, int row, int column,
                                            int columns, float (&x)[kVector]) {
#pragma unroll
  for (int i = 0; i < kVector; ++i) x[i] = 0.f;
  if (column >= columns) return;
  const Element* from =
      static_cast<const Element*>(t.data) + batch * t.batch_stride + head * t.head_stride + row * t.row_stride + column;
  alignas(16) Element raw[kVector];
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(raw)) / 16; ++i) {
    reinterpret_cast<int4*>(raw)[i] = __ldg(reinterpret_cast<const int4*>(from) + i);
  }
#pragma unroll
  for (int i = 0; i < kVector; ++i) x[i] = to_float(raw[i]);
}

// Whether all are finite; false also where only their sum is not.
__device__ __forceinline__ bool surely_finite(const float (&x)[kVector]) {
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < kVector; ++i) sum += fabsf(x[i]);
  return sum < INFINITY;
}

// The largest magnitude among those that are finite.
__device__ __forceinline__ float largest_finite(const float (&x)[kVector]) {
  const bool finite = surely_finite(x);
  float largest = 0.f;
#pragma unroll
  for (int i = 0; i < kVector; ++i) largest = fmaxf(largest, finite || isfinite(x[i]) ? fabsf(x[i]) : 0.f);
  return largest;
}

// What x is multiplied by so that `largest` becomes the largest e4m3 number, and its inverse.
struct Fp8Scale {
  float multiplier, scale;
};
__device__ __forceinline__ Fp8Scale fp8_scale(float largest) {
  if (largest / kFp8Largest < 0x1p-126f) return {1.f, 1.f};
  return {kFp8Largest / largest, largest / kFp8Largest};
}

// e4m3 has no infinity: what is not finite becomes NaN.
__device__ __forceinline__ void infinities_to_nan(float (&x)[kVector]) {
  if (surely_finite(x)) return;
#pragma unroll
  for (int i = 0; i < kVector; ++i) x[i] = isfinite(x[i]) ? x[i] : NAN;
}

__device__ __forceinline__ uint2 pack8(const float (&x)[kVector]) {
  return make_uint2(ptx::pack_e4m3(x[0], x[1], x[2], x[3]), ptx::pack_e4m3(x[4], x[5], x[6], x[7]));
}

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

// What is known of one column of k and v over some keys. Values that are not finite do not count.
__device__ __forceinline__ float4 empty_column() { return make_float4(0.f, 0.f, INFINITY, -INFINITY); }
__device__ __forceinline__ float4 join(const float4& a, const float4& b) {  // sum of k, of v; least and largest v
  return make_float4(a.x + b.x, a.y + b.y, fminf(a.z, b.z), fmaxf(a.w, b.w));
}

// Where the columns over a chunk of keys are. Those of packed sequences begin as their blocks of keys do.
__device__ __forceinline__ std::int64_t chunk_at(const ForwardParams& p, const Prepared& to, const Rows& rows,
                                                 int sequence, int head, int chunk) {
  const int first = p.q_starts.data ? rows.kv_begin / kChunk + sequence : 0;
  const std::int64_t plane = static_cast<std::int64_t>(rows.batch) * (p.heads / p.group) + head;
  return (plane * to.chunks + first + chunk) * to.head_dim;
}

// Columns over kChunk keys.
template <class Element>
__global__ void __launch_bounds__(kThreads) reduce_kernel(const ForwardParams p, const Prepared to) {
  __shared__ float4 columns[kThreads * kVector];
  const int chunk = blockIdx.x, head = blockIdx.y, sequence = blockIdx.z;
  const Rows rows = rows_of(p, sequence);
  if (chunk * kChunk >= rows.kv_len) return;
  const int vectors = to.head_dim / kVector, lanes = kThreads / vectors;  // rows that are loaded at the same time
  const int lane = threadIdx.x / vectors, column = threadIdx.x % vectors * kVector;
  float4 found[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) found[i] = empty_column();
  if (lane < lanes) {
    const int end = min(rows.kv_len, (chunk + 1) * kChunk);
#pragma unroll 4
    for (int key = chunk * kChunk + lane; key < end; key += lanes) {
      float k[kVector], v[kVector];
      load_vector<Element>(p.k, rows.batch, head, rows.kv_begin + key, column, p.head_dim, k);
      load_vector<Element>(p.v, rows.batch, head, rows.kv_begin + key, column, p.value_dim, v);
      if (surely_finite(k) && surely_finite(v)) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) found[i] = join(found[i], make_float4(k[i], v[i], v[i], v[i]));
      } else {
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          const bool finite = isfinite(v[i]);
          found[i] = join(found[i], make_float4(isfinite(k[i]) ? k[i] : 0.f, finite ? v[i] : 0.f,
                                                finite ? v[i] : INFINITY, finite ? v[i] : -INFINITY));
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) columns[lane * to.head_dim + column + i] = found[i];
  }
  __syncthreads();
  if (static_cast<int>(threadIdx.x) >= to.head_dim) return;
  float4 total = empty_column();
  for (int i = 0; i < lanes; ++i) total = join(total, columns[i * to.head_dim + threadIdx.x]);
  to.partials[chunk_at(p, to, rows, sequence, head, chunk) + threadIdx.x] = total;
}

// The mean key, the mean value and the scales of v. One thread a column; the chunks are added in order.
inline __global__ void finish_kernel(const ForwardParams p, const Prepared to) {
  const int head = blockIdx.x, sequence = blockIdx.y;
  const Rows rows = rows_of(p, sequence);
  const std::int64_t plane = static_cast<std::int64_t>(sequence) * gridDim.x + head;
  const int chunks = (rows.kv_len + kChunk - 1) / kChunk;
  float4 total = empty_column();
#pragma unroll 8
  for (int chunk = 0; chunk < chunks; ++chunk) {
    total = join(total, to.partials[chunk_at(p, to, rows, sequence, head, chunk) + threadIdx.x]);
  }
  const float keys = static_cast<float>(max(rows.kv_len, 1));
  // A mean below the steps of e4m3 stays: rounding would not see that it was taken off, and it would be added twice.
  const float mean_of_all = total.y / keys, largest_of_all = fmaxf(fmaxf(total.w, -total.z), 0.f);
  const bool takes_mean = isfinite(mean_of_all) && fabsf(mean_of_all) > largest_of_all / 32;
  const float mean_value = takes_mean ? mean_of_all : 0.f;
  const float largest = fmaxf(fmaxf(total.w - mean_value, mean_value - total.z), 0.f);  // -inf: no finite value
  const std::int64_t at = plane * to.head_dim + threadIdx.x;
  // A sink and a softcap see more than differences of scores. A sum that overflows takes nothing off.
  const bool key_stays = p.sinks.data || p.terms.softcap.cap_log2 > 0 || !isfinite(total.x);
  to.mean_key[at] = key_stays ? 0.f : total.x / keys;
  to.mean_value[at] = mean_value;
  const Fp8Scale scale = fp8_scale(largest);
  to.v_scale[at] = scale.scale;
  to.v_multiplier[at] = scale.multiplier;
}

// The largest over the lanes of a warp that share a row, and their sum. Lanes: a power of two.
__device__ __forceinline__ float lanes_max(float x, int lanes) {
  for (int width = lanes / 2; width > 0; width /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, width));
  return x;
}
__device__ __forceinline__ float lanes_sum(float x, int lanes) {
  for (int width = lanes / 2; width > 0; width /= 2) x += __shfl_xor_sync(0xffffffffu, x, width);
  return x;
}

// 128 queries of a head: each row has a scale.
template <class Element>
__device__ void quantize_queries(const ForwardParams& p, const Prepared& to, const Rows& rows, int sequence, int head,
                                 int block) {
  const int lanes = to.head_dim <= 64 ? 8 : to.head_dim <= 128 ? 16 : 32;
  const int column = threadIdx.x % lanes * kVector;
  float mean[kVector] = {};
  if (column < to.head_dim) {
    const std::int64_t plane = static_cast<std::int64_t>(sequence) * (p.heads / p.group) + head / p.group;
#pragma unroll
    for (int i = 0; i < kVector; ++i) mean[i] = to.mean_key[plane * to.head_dim + column + i];
  }
  for (int first = 0; first < kQueries; first += kThreads / lanes) {
    const int row = block * kQueries + first + static_cast<int>(threadIdx.x) / lanes;
    const bool exists = row < rows.q_len;
    float x[kVector];
    load_vector<Element>(p.q, rows.batch, head, rows.q_begin + (exists ? row : 0), column, p.head_dim, x);
    float shift = 0.f;
#pragma unroll
    for (int i = 0; i < kVector; ++i) shift = fmaf(x[i], mean[i], shift);
    const Fp8Scale scale = fp8_scale(lanes_max(largest_finite(x), lanes));
    shift = lanes_sum(shift, lanes);
    if (!exists) continue;
    const std::int64_t at = (static_cast<std::int64_t>(rows.batch) * p.heads + head) * p.q_rows + rows.q_begin + row;
    if (column == 0) {
      to.q_unit[at] = scale.scale * p.scale_log2;
      to.q_shift[at] = shift * p.scale_log2;
    }
    if (column >= to.head_dim) continue;
    infinities_to_nan(x);
#pragma unroll
    for (int i = 0; i < kVector; ++i) x[i] *= scale.multiplier;
    *reinterpret_cast<uint2*>(to.q + at * to.head_dim + column) = pack8(x);
  }
}

// A tile of keys of a head, less the mean key: one scale. The tile is read once and waits in registers for its scale.
template <class Element>
__device__ void quantize_keys(const ForwardParams& p, const Prepared& to, const Rows& rows, int sequence, int head,
                              int block, int first_block) {
  constexpr int kVectors = kMostElements / kVector / kThreads;  // of a thread
  __shared__ float warp_maxima[kThreads / 32];
  const int kv_heads = p.heads / p.group;
  const int vectors = to.head_dim / kVector;
  const float* mean = to.mean_key + (static_cast<std::int64_t>(sequence) * kv_heads + head) * to.head_dim;
  const int keys = min(to.block_kv, rows.kv_len - block * to.block_kv);
  float x[kVectors][kVector];
  float largest = 0.f;
#pragma unroll
  for (int n = 0; n < kVectors; ++n) {
    const int at = static_cast<int>(threadIdx.x) + n * kThreads;
    if (at >= keys * vectors) break;
    const int key = block * to.block_kv + at / vectors, column = at % vectors * kVector;
    load_vector<Element>(p.k, rows.batch, head, rows.kv_begin + key, column, p.head_dim, x[n]);
#pragma unroll
    for (int i = 0; i < kVector; ++i) x[n][i] -= mean[column + i];
    largest = fmaxf(largest, largest_finite(x[n]));
  }
  largest = lanes_max(largest, 32);
  if (threadIdx.x % 32 == 0) warp_maxima[threadIdx.x / 32] = largest;
  __syncthreads();
  for (int warp = 0; warp < kThreads / 32; ++warp) largest = fmaxf(largest, warp_maxima[warp]);
  const Fp8Scale scale = fp8_scale(largest);
  const std::int64_t plane = static_cast<std::int64_t>(rows.batch) * kv_heads + head;
  if (threadIdx.x == 0) to.k_scale[plane * to.key_blocks + first_block + block] = scale.scale;
#pragma unroll
  for (int n = 0; n < kVectors; ++n) {
    const int at = static_cast<int>(threadIdx.x) + n * kThreads;
    if (at >= keys * vectors) break;
    infinities_to_nan(x[n]);
#pragma unroll
    for (int i = 0; i < kVector; ++i) x[n][i] *= scale.multiplier;
    const int key = rows.kv_begin + block * to.block_kv + at / vectors;
    *reinterpret_cast<uint2*>(to.k + (plane * p.kv_rows + key) * to.head_dim + at % vectors * kVector) = pack8(x[n]);
  }
}

// A tile of values of a head, less the mean value, transposed: [column][key], keys in the order of fp8_key_position().
// Keys past the end are zeros. A thread turns the four keys of one word (2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of 16) in
// eight columns; neighbouring threads have neighbouring words.
template <class Element>
__device__ void quantize_values(const ForwardParams& p, const Prepared& to, const Rows& rows, int sequence, int head,
                                int block, int first_block) {
  static_assert(fp8_key_position(9) == 3 && fp8_key_position(2) == 4);
  const int kv_heads = p.heads / p.group;
  const std::int64_t columns_at = (static_cast<std::int64_t>(sequence) * kv_heads + head) * to.head_dim;
  const std::int64_t plane = static_cast<std::int64_t>(rows.batch) * kv_heads + head;
  const int words = to.block_kv / 4;
  for (int at = threadIdx.x; at < words * (to.head_dim / kVector); at += kThreads) {
    const int word = at % words, column = at / words * kVector;
    float mean[kVector], multiplier[kVector], x[4][kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      mean[i] = to.mean_value[columns_at + column + i];
      multiplier[i] = to.v_multiplier[columns_at + column + i];
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int key = block * to.block_kv + word / 4 * 16 + word % 4 * 2 + n / 2 * 8 + n % 2;
      const bool exists = key < rows.kv_len;
      load_vector<Element>(p.v, rows.batch, head, (exists ? rows.kv_begin + key : 0), column, p.value_dim, x[n]);
      infinities_to_nan(x[n]);
#pragma unroll
      for (int i = 0; i < kVector; ++i) x[n][i] = exists ? (x[n][i] - mean[i]) * multiplier[i] : 0.f;
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const std::int64_t row = (plane * to.head_dim + column + i) * to.key_blocks + first_block + block;
      reinterpret_cast<std::uint32_t*>(to.v + row * to.block_kv)[word] =
          ptx::pack_e4m3(x[0][i], x[1][i], x[2][i], x[3][i]);
    }
  }
}

// x counts blocks of 128 queries, then tiles of keys and values.
template <class Element>
__global__ void __launch_bounds__(kThreads) quantize_kernel(const ForwardParams p, const Prepared to, int q_blocks) {
  // The last heads first: reduce_kernel left their k and v in L2.
  const int sequence = static_cast<int>(gridDim.z - 1 - blockIdx.z),
            head = static_cast<int>(gridDim.y - 1 - blockIdx.y);
  const Rows rows = rows_of(p, sequence);
  const int block = static_cast<int>(blockIdx.x);
  if (block < q_blocks) {
    if (block * kQueries < rows.q_len) quantize_queries<Element>(p, to, rows, sequence, head, block);
    return;
  }
  if (head >= p.heads / p.group) return;
  const int key_block = block - q_blocks;
  if (key_block > 0 && key_block * to.block_kv >= rows.kv_len) return;  // a row without keys still loads one tile
  const int first_block = p.q_starts.data ? rows.kv_begin / to.block_kv + sequence : 0;
  quantize_keys<Element>(p, to, rows, sequence, head, key_block, first_block);
  quantize_values<Element>(p, to, rows, sequence, head, key_block, first_block);
}

// Two e4m3 numbers as floats.
__device__ __forceinline__ float2 unpack2(std::uint16_t bytes) {
  const std::uint32_t halves = ptx::unpack_e4m3(bytes);
  __half2_raw pair;
  pair.x = static_cast<unsigned short>(halves & 0xffff);
  pair.y = static_cast<unsigned short>(halves >> 16);
  return __half22float2(__half2(pair));
}

// Eight e4m3 numbers as floats.
__device__ __forceinline__ void unpack8(const std::uint8_t* from, float (&x)[kVector]) {
  const uint2 bytes = *reinterpret_cast<const uint2*>(from);
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    const std::uint32_t word = pair < 2 ? bytes.x : bytes.y;
    const float2 two = unpack2(static_cast<std::uint16_t>(word >> (16 * (pair % 2))));
    x[2 * pair] = two.x;
    x[2 * pair + 1] = two.y;
  }
}

template <class Element>
__device__ __forceinline__ void store_vector(Element* to, const float (&x)[kVector]) {
  uint4 packed;
  packed.x = ptx::pack<Element>(x[0], x[1]);
  packed.y = ptx::pack<Element>(x[2], x[3]);
  packed.z = ptx::pack<Element>(x[4], x[5]);
  packed.w = ptx::pack<Element>(x[6], x[7]);
  *reinterpret_cast<uint4*>(to) = packed;
}

// What the numbers of quantize_kernel stand for, in contiguous tensors. One thread a vector of a row; the grid is that
// of quantize_kernel.
template <class Element>
__global__ void __launch_bounds__(kThreads) values_kernel(const ForwardParams p, const Prepared from, int q_blocks,
                                                          Element* q, Element* k, Element* v, float* lse) {
  const int sequence = blockIdx.z, head = blockIdx.y, block = static_cast<int>(blockIdx.x);
  const Rows rows = rows_of(p, sequence);
  const int kv_heads = p.heads / p.group;
  float x[kVector];
  if (block < q_blocks) {
    const int vectors = p.head_dim / kVector;
    for (int at = threadIdx.x; at < kQueries * vectors; at += kThreads) {
      const int row = block * kQueries + at / vectors, column = at % vectors * kVector;
      if (row >= rows.q_len) return;
      const std::int64_t index =
          (static_cast<std::int64_t>(rows.batch) * p.heads + head) * p.q_rows + rows.q_begin + row;
      unpack8(from.q + index * from.head_dim + column, x);
      const float scale = from.q_unit[index] / p.scale_log2;
#pragma unroll
      for (int i = 0; i < kVector; ++i) x[i] *= scale;
      store_vector(q + index * p.head_dim + column, x);
      if (column == 0) {
        const DeviceTensor& saved = p.row_values[kLse];
        const float with_mean =
            static_cast<const float*>(saved.data)[rows.batch * saved.batch_stride + head * saved.head_stride +
                                                  (rows.q_begin + row) * saved.row_stride];
        lse[index] = with_mean - from.q_shift[index] * kLn2;
      }
    }
    return;
  }
  if (head >= kv_heads) return;
  const int key_block = block - q_blocks;
  const int first_block = p.q_starts.data ? rows.kv_begin / from.block_kv + sequence : 0;
  const std::int64_t plane = static_cast<std::int64_t>(rows.batch) * kv_heads + head;
  const std::int64_t columns_at = (static_cast<std::int64_t>(sequence) * kv_heads + head) * from.head_dim;
  const float k_scale = from.k_scale[plane * from.key_blocks + first_block + key_block];
  const int vectors = from.head_dim / kVector;
  for (int at = threadIdx.x; at < from.block_kv * vectors; at += kThreads) {
    const int in_block = at / vectors, key = key_block * from.block_kv + in_block, column = at % vectors * kVector;
    if (key >= rows.kv_len) return;
    const std::int64_t row = plane * p.kv_rows + rows.kv_begin + key;
    if (column < p.head_dim) {
      unpack8(from.k + row * from.head_dim + column, x);
#pragma unroll
      for (int i = 0; i < kVector; ++i) x[i] *= k_scale;
      store_vector(k + row * p.head_dim + column, x);
    }
    if (column < p.value_dim) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const std::int64_t line = (plane * from.head_dim + column + i) * from.key_blocks + first_block + key_block;
        const std::uint16_t byte = from.v[line * from.block_kv + fp8_key_position(in_block)];
        x[i] = fmaf(unpack2(byte).x, from.v_scale[columns_at + column + i], from.mean_value[columns_at + column + i]);
      }
      store_vector(v + row * p.value_dim + column, x);
    }
  }
}

}  // namespace rootdk::cuda::hopper::preparation
