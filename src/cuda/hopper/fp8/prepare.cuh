#pragma once

// The kernels of the preparation: means and scales by column, then e4m3 numbers.
//
// They are bound by memory, so that every thread asks for all its vectors before it uses the first one, and keeps them
// as they came, in 16 bits.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "cuda/hopper/shared/fp8_layout.h"
#include "cuda/hopper/shared/logit_terms.cuh"
#include "cuda/hopper/shared/params.h"
#include "cuda/hopper/shared/work_tiles.cuh"
#include "cuda/ptx/arithmetic.cuh"

namespace rootdk::cuda::hopper::preparation {

inline constexpr int kThreads = 256;
inline constexpr int kChunk = 256;    // keys of which one block takes sums and maxima
inline constexpr int kVector = 8;     // columns of a thread: 16 bytes of a row
inline constexpr int kQueries = 128;  // queries of a block of quantize_kernel

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
  int head_dim;  // of the kernel; columns past those of the tensors are zeros
  int block_kv, key_blocks, chunks;
};

__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

// Eight columns of a row in 16 bits, zeros past `columns`.
template <class Element>
__device__ __forceinline__ int4 load_vector(const DeviceTensor& t, int batch, int head, int row, int column,
                                            int columns) {
  if (column >= columns) return make_int4(0, 0, 0, 0);
  const Element* from =
      static_cast<const Element*>(t.data) + batch * t.batch_stride + head * t.head_stride + row * t.row_stride + column;
  return __ldg(reinterpret_cast<const int4*>(from));
}
template <class Element>
__device__ __forceinline__ void to_floats(const int4& raw, float (&x)[kVector]) {
  alignas(16) Element elements[kVector];
  memcpy(static_cast<void*>(elements), &raw, sizeof(raw));
#pragma unroll
  for (int i = 0; i < kVector; ++i) x[i] = to_float(elements[i]);
}

// Hides from the compiler that it has converted a vector before: it must not keep the floats, which take twice the
// registers.
__device__ __forceinline__ void forget(int4& raw) {
  asm volatile("" : "+r"(raw.x), "+r"(raw.y), "+r"(raw.z), "+r"(raw.w));
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

template <class Element>
__device__ __forceinline__ void join_key(const int4& raw_k, const int4& raw_v, float4 (&found)[kVector]) {
  float k[kVector], v[kVector];
  to_floats<Element>(raw_k, k);
  to_floats<Element>(raw_v, v);
  if (surely_finite(k) && surely_finite(v)) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) found[i] = join(found[i], make_float4(k[i], v[i], v[i], v[i]));
    return;
  }
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const bool finite = isfinite(v[i]);
    found[i] = join(found[i], make_float4(isfinite(k[i]) ? k[i] : 0.f, finite ? v[i] : 0.f, finite ? v[i] : INFINITY,
                                          finite ? v[i] : -INFINITY));
  }
}

// Columns over kChunk keys.
template <class Element>
__global__ void __launch_bounds__(kThreads) reduce_kernel(const ForwardParams p, const Prepared to) {
  constexpr int kTogether = 4;  // keys that a thread asks for before it uses the first
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
    for (int key = chunk * kChunk + lane; key < end; key += kTogether * lanes) {
      int4 k[kTogether], v[kTogether];
#pragma unroll
      for (int n = 0; n < kTogether; ++n) {
        const int row = rows.kv_begin + min(key + n * lanes, end - 1);
        k[n] = load_vector<Element>(p.k, rows.batch, head, row, column, p.head_dim);
        v[n] = load_vector<Element>(p.v, rows.batch, head, row, column, p.value_dim);
      }
#pragma unroll
      for (int n = 0; n < kTogether; ++n) {
        if (key + n * lanes < end) join_key<Element>(k[n], v[n], found);
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

// Threads of finish_kernel that share a column.
constexpr int parts_of(int head_dim) { return 1024 / head_dim < 8 ? 4 : 8; }

// The mean key, the mean value and the scales of v. A thread adds the chunks of its part in order, the first part's
// threads add the parts.
inline __global__ void __launch_bounds__(1024) finish_kernel(const ForwardParams p, const Prepared to) {
  __shared__ float4 parts[1024];
  const int head = blockIdx.x, sequence = blockIdx.y;
  const Rows rows = rows_of(p, sequence);
  const std::int64_t plane = static_cast<std::int64_t>(sequence) * gridDim.x + head;
  const int chunks = (rows.kv_len + kChunk - 1) / kChunk, count = parts_of(to.head_dim);
  const int thread = static_cast<int>(threadIdx.x), column = thread % to.head_dim;
  float4 total = empty_column();
#pragma unroll 8
  for (int chunk = thread / to.head_dim; chunk < chunks; chunk += count) {
    total = join(total, to.partials[chunk_at(p, to, rows, sequence, head, chunk) + column]);
  }
  parts[thread] = total;
  __syncthreads();
  if (thread >= to.head_dim) return;
  for (int part = 1; part < count; ++part) total = join(total, parts[part * to.head_dim + thread]);
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
  const Fp8Scale scale = fp8_scale(largest);
  to.v_multiplier[at] = scale.multiplier;
  float* const v_columns = to.v_columns + plane * 2 * to.head_dim + threadIdx.x;
  v_columns[0] = scale.scale;
  v_columns[to.head_dim] = mean_value;
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

// Eight columns of one of the arrays over columns; zeros past those of the kernel.
__device__ __forceinline__ void load_columns(const float* from, int column, int head_dim, float (&x)[kVector]) {
#pragma unroll
  for (int i = 0; i < kVector; ++i) x[i] = column < head_dim ? from[column + i] : 0.f;
}

// One query: e4m3 numbers with a scale of their row, and what the mean key adds to the row's logits.
template <class Element, int Lanes>
__device__ __forceinline__ void quantize_query(const ForwardParams& p, const Prepared& to, const int4& raw,
                                               const float (&mean)[kVector], std::int64_t at, bool exists, int column) {
  float x[kVector], shift = 0.f;
  to_floats<Element>(raw, x);
#pragma unroll
  for (int i = 0; i < kVector; ++i) shift = fmaf(x[i], mean[i], shift);
  const Fp8Scale scale = fp8_scale(lanes_max(largest_finite(x), Lanes));
  shift = lanes_sum(shift, Lanes);
  if (!exists) return;
  if (column == 0) to.q_units[at] = make_float2(scale.scale * p.scale_log2, shift * p.scale_log2);
  if (column >= to.head_dim) return;
  infinities_to_nan(x);
#pragma unroll
  for (int i = 0; i < kVector; ++i) x[i] *= scale.multiplier;
  *reinterpret_cast<uint2*>(to.q + at * to.head_dim + column) = pack8(x);
}

// kQueries queries of a head.
template <class Element, int Lanes>
__device__ __forceinline__ void quantize_queries(const ForwardParams& p, const Prepared& to, const Rows& rows,
                                                 int sequence, int head, int block) {
  constexpr int kRows = kThreads / Lanes, kTogether = Lanes == 8 ? 4 : 8;
  static_assert(kQueries % (kTogether * kRows) == 0);
  const int column = static_cast<int>(threadIdx.x) % Lanes * kVector;
  const std::int64_t columns_at = static_cast<std::int64_t>(sequence) * (p.heads / p.group) + head / p.group;
  float mean[kVector];
  load_columns(to.mean_key + columns_at * to.head_dim, column, to.head_dim, mean);
  const std::int64_t plane = static_cast<std::int64_t>(rows.batch) * p.heads + head;
#pragma unroll 1
  for (int first = 0; first < kQueries; first += kTogether * kRows) {
    const int row = block * kQueries + first + static_cast<int>(threadIdx.x) / Lanes;
    int4 raw[kTogether];
#pragma unroll
    for (int n = 0; n < kTogether; ++n) {
      const int existing = min(row + n * kRows, rows.q_len - 1);
      raw[n] = load_vector<Element>(p.q, rows.batch, head, rows.q_begin + existing, column, p.head_dim);
    }
#pragma unroll
    for (int n = 0; n < kTogether; ++n) {
      const std::int64_t at = plane * p.q_rows + rows.q_begin + row + n * kRows;
      quantize_query<Element, Lanes>(p, to, raw[n], mean, at, row + n * kRows < rows.q_len, column);
    }
  }
}

// The largest over the threads of a block.
__device__ __forceinline__ float block_max(float x) {
  __shared__ float warp_maxima[kThreads / 32];
  x = lanes_max(x, 32);
  if (threadIdx.x % 32 == 0) warp_maxima[threadIdx.x / 32] = x;
  __syncthreads();
#pragma unroll
  for (int warp = 0; warp < kThreads / 32; ++warp) x = fmaxf(x, warp_maxima[warp]);
  return x;
}

// A tile of keys of a head, less the mean key: one scale.
template <class Element, int Lanes>
__device__ __forceinline__ void quantize_keys(const ForwardParams& p, const Prepared& to, const Rows& rows,
                                              int sequence, int head, int block, int first_block) {
  constexpr int kVectors = vectors_of(Lanes), kRows = kThreads / Lanes;
  const int column = static_cast<int>(threadIdx.x) % Lanes * kVector;
  const int first = static_cast<int>(threadIdx.x) / Lanes;
  const int kv_heads = p.heads / p.group, keys = min(to.block_kv, rows.kv_len - block * to.block_kv);
  const int begin = rows.kv_begin + block * to.block_kv;
  int4 raw[kVectors];
#pragma unroll
  for (int n = 0; n < kVectors; ++n) {
    raw[n] = first + n * kRows < keys
                 ? load_vector<Element>(p.k, rows.batch, head, begin + first + n * kRows, column, p.head_dim)
                 : make_int4(0, 0, 0, 0);
  }
  float mean[kVector], x[kVector], largest = 0.f;
  load_columns(to.mean_key + (static_cast<std::int64_t>(sequence) * kv_heads + head) * to.head_dim, column, to.head_dim,
               mean);
  const auto less_mean = [&](const int4& vector) {
    to_floats<Element>(vector, x);
#pragma unroll
    for (int i = 0; i < kVector; ++i) x[i] -= mean[i];
  };
#pragma unroll
  for (int n = 0; n < kVectors; ++n) {
    less_mean(raw[n]);
    if (first + n * kRows < keys) largest = fmaxf(largest, largest_finite(x));
  }
  const Fp8Scale scale = fp8_scale(block_max(largest));
  const std::int64_t plane = static_cast<std::int64_t>(rows.batch) * kv_heads + head;
  if (threadIdx.x == 0) to.k_scale[plane * to.key_blocks + first_block + block] = scale.scale;
  if (column >= to.head_dim) return;
  std::uint8_t* const numbers = to.k + (plane * p.kv_rows + begin + first) * to.head_dim + column;
#pragma unroll
  for (int n = 0; n < kVectors; ++n) {
    if (first + n * kRows >= keys) break;
    forget(raw[n]);
    less_mean(raw[n]);
    infinities_to_nan(x);
#pragma unroll
    for (int i = 0; i < kVector; ++i) x[i] *= scale.multiplier;
    *reinterpret_cast<uint2*>(numbers + static_cast<std::int64_t>(n) * kRows * to.head_dim) = pack8(x);
  }
}

// Shared memory for a tile of values as words of four keys: [column][word]. The words of a column are stored in an
// order in which the threads of a warp, which hold neighbouring columns of the same keys, write to different banks.
inline constexpr int kTileWords = 128 * 64;
template <int Lanes>
__device__ __forceinline__ int tile_word(int column, int word, int pitch) {
  return column * pitch + (word ^ (column / kVector * (32 / Lanes)));
}

// A tile of values of a head, less the mean value, transposed: [column][key], keys in the order of fp8_key_position().
// Keys past the end are zeros. A thread turns the four keys of one word (2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of 16) in
// eight columns.
template <class Element, int Lanes>
__device__ __forceinline__ void quantize_values(const ForwardParams& p, const Prepared& to, const Rows& rows,
                                                int sequence, int head, int block, int first_block) {
  static_assert(fp8_key_position(9) == 3 && fp8_key_position(2) == 4);
  constexpr int kWords = vectors_of(Lanes) / 4;  // of a thread
  __shared__ std::uint32_t tile[kTileWords];
  const int column = static_cast<int>(threadIdx.x) % Lanes * kVector;
  const int kv_heads = p.heads / p.group, words = to.block_kv / 4, pitch = words > 32 ? 64 : 32;
  const auto word_at = [&](int n) { return static_cast<int>(threadIdx.x) / Lanes + n * (kThreads / Lanes); };
  const auto key_at = [&](int word, int n) {
    return block * to.block_kv + word / 4 * 16 + word % 4 * 2 + n / 2 * 8 + n % 2;
  };
  int4 raw[kWords][4];
#pragma unroll
  for (int n = 0; n < 4 * kWords; ++n) {
    const int word = word_at(n / 4), key = key_at(word, n % 4);
    raw[n / 4][n % 4] = word < words && key < rows.kv_len
                            ? load_vector<Element>(p.v, rows.batch, head, rows.kv_begin + key, column, p.value_dim)
                            : make_int4(0, 0, 0, 0);
  }
  const std::int64_t columns_at = static_cast<std::int64_t>(sequence) * kv_heads + head;
  float mean[kVector], multiplier[kVector];
  load_columns(to.v_columns + (2 * columns_at + 1) * to.head_dim, column, to.head_dim, mean);
  load_columns(to.v_multiplier + columns_at * to.head_dim, column, to.head_dim, multiplier);
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const int word = word_at(i);
    if (word >= words || column >= to.head_dim) break;
    float x[4][kVector];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      to_floats<Element>(raw[i][n], x[n]);
      infinities_to_nan(x[n]);
      const bool exists = key_at(word, n) < rows.kv_len;
#pragma unroll
      for (int c = 0; c < kVector; ++c) x[n][c] = exists ? (x[n][c] - mean[c]) * multiplier[c] : 0.f;
    }
#pragma unroll
    for (int c = 0; c < kVector; ++c) {
      tile[tile_word<Lanes>(column + c, word, pitch)] = ptx::pack_e4m3(x[0][c], x[1][c], x[2][c], x[3][c]);
    }
  }
  __syncthreads();
  const std::int64_t plane = static_cast<std::int64_t>(rows.batch) * kv_heads + head;
  for (int c = static_cast<int>(threadIdx.x) / 32; c < to.head_dim; c += kThreads / 32) {
    const std::int64_t row = (plane * to.head_dim + c) * to.key_blocks + first_block + block;
    for (int word = static_cast<int>(threadIdx.x) % 32; word < words; word += 32) {
      reinterpret_cast<std::uint32_t*>(to.v + row * to.block_kv)[word] = tile[tile_word<Lanes>(c, word, pitch)];
    }
  }
}

// x counts blocks of kQueries queries, then tiles of keys, then tiles of values.
template <class Element, int Lanes>
__global__ void __launch_bounds__(kThreads, Lanes == 32 ? 2 : 3)
    quantize_kernel(const ForwardParams p, const Prepared to, int q_blocks) {
  // The last heads first: reduce_kernel left their k and v in L2.
  const int sequence = static_cast<int>(gridDim.z - 1 - blockIdx.z),
            head = static_cast<int>(gridDim.y - 1 - blockIdx.y);
  const Rows rows = rows_of(p, sequence);
  const int block = static_cast<int>(blockIdx.x);
  if (block < q_blocks) {
    if (block * kQueries < rows.q_len) quantize_queries<Element, Lanes>(p, to, rows, sequence, head, block);
    return;
  }
  if (head >= p.heads / p.group) return;
  const int key_blocks = (static_cast<int>(gridDim.x) - q_blocks) / 2;
  const bool keys = block - q_blocks < key_blocks;
  const int key_block = block - q_blocks - (keys ? 0 : key_blocks);
  if (key_block > 0 && key_block * to.block_kv >= rows.kv_len) return;  // a row without keys still loads one tile
  const int first_block = p.q_starts.data ? rows.kv_begin / to.block_kv + sequence : 0;
  if (keys) {
    quantize_keys<Element, Lanes>(p, to, rows, sequence, head, key_block, first_block);
  } else {
    quantize_values<Element, Lanes>(p, to, rows, sequence, head, key_block, first_block);
  }
}

}  // namespace rootdk::cuda::hopper::preparation
