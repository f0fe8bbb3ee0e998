#pragma once

// What the numbers of quantize_kernel stand for: the gradient is taken at these values.

#include "cuda/hopper/fp8/prepare.cuh"

namespace rootdk::cuda::hopper::preparation {

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

// The values in contiguous tensors. One thread a vector of a row; x counts blocks of kQueries queries, then tiles of
// keys.
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
      const float scale = from.q_units[index].x / p.scale_log2;
#pragma unroll
      for (int i = 0; i < kVector; ++i) x[i] *= scale;
      store_vector(q + index * p.head_dim + column, x);
      if (column == 0) {
        const DeviceTensor& saved = p.row_values[kLse];
        const float with_mean =
            static_cast<const float*>(saved.data)[rows.batch * saved.batch_stride + head * saved.head_stride +
                                                  (rows.q_begin + row) * saved.row_stride];
        lse[index] = with_mean - from.q_units[index].y * kLn2;
      }
    }
    return;
  }
  if (head >= kv_heads) return;
  const int key_block = block - q_blocks;
  const int first_block = p.q_starts.data ? rows.kv_begin / from.block_kv + sequence : 0;
  const std::int64_t plane = static_cast<std::int64_t>(rows.batch) * kv_heads + head;
  const float* const v_columns =
      from.v_columns + 2 * (static_cast<std::int64_t>(sequence) * kv_heads + head) * from.head_dim;
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
        x[i] = fmaf(unpack2(byte).x, v_columns[column + i], v_columns[from.head_dim + column + i]);
      }
      store_vector(v + row * p.value_dim + column, x);
    }
  }
}

}  // namespace rootdk::cuda::hopper::preparation
