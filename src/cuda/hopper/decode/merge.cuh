#pragma once

// Merges the partial results of decode, one per part of the keys, from the workspace.

#include "cuda/hopper/decode/config.h"
#include "cuda/hopper/decode/repair.cuh"
#include "cuda/hopper/shared/row_results.cuh"
#include "cuda/ptx/grid_dependency.cuh"

namespace rootdk::cuda::hopper {

// Adds the sums of a part, whose maximum is at most that of `sums`. Returns the factor of the part's output: 0 if the
// row saw no key of the part, which then has no output.
__device__ __forceinline__ float join(RowSums& sums, const float4& part) {
  const bool empty = part.y == 0.f;
  const float shift = empty ? 0.f : part.x - sums.m, share = empty ? 0.f : ptx::exp2_approximate(shift);
  sums.l = fmaf(share, part.y, sums.l);
  sums.a = fmaf(share, fmaf(shift, part.y, part.z), sums.a);
  sums.b = fmaf(share * share, part.w, sums.b);
  return share;
}

// Reduces x over the block in a fixed order; every thread gets the result.
template <class Join>
__device__ __forceinline__ float block_reduce(float x, float (&exchanged)[kDecodeMergeThreads / 32], Join join) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = join(x, __shfl_xor_sync(0xffffffffu, x, step));
  __syncthreads();
  if ((threadIdx.x & 31) == 0) exchanged[threadIdx.x / 32] = x;
  __syncthreads();
  x = exchanged[0];
#pragma unroll
  for (int warp = 1; warp < kDecodeMergeThreads / 32; ++warp) x = join(x, exchanged[warp]);
  return x;
}

// Merges the parts of every row, one block per row. First each part's share is computed, then the outputs are added:
// warp w takes the parts w, w + 8, ... of each round, and the sums of the warps are added in order.
template <class Element, bool Repairs>
__device__ __forceinline__ void merge_parts(const ForwardParams& p, const CacheKeys& cache) {
  constexpr int kWarps = kDecodeMergeThreads / 32, kColumns = 256;
  __shared__ float shares[kDecodeMergeThreads];  // of the parts of one round
  __shared__ float exchanged[kWarps];
  __shared__ float warp_out[kWarps][kColumns];
  const int kv_heads = p.heads / p.group, warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const int tile = blockIdx.x / p.tile_rows / kv_heads, kv_head = blockIdx.x / p.tile_rows % kv_heads;
  const int in_tile = blockIdx.x % p.tile_rows;

  ptx::wait_for_previous_kernel();
  int parts = p.splits, batch = tile, first_row = 0, first_head = 0;
  if (cache.tiles) {
    const CacheTile cached = cache.tiles[tile];
    if (in_tile >= cached.rows) return;
    const int tokens = (cached.first_head + cached.rows - 1) / p.group + 1;
    parts = (cached.position + tokens + kChunkKeys - 1) / kChunkKeys;
    batch = 0;
    first_row = cached.row;
    first_head = cached.first_head;
  }
  const int head = kv_head * p.group + (first_head + in_tile) % p.group;
  const int row = first_row + (first_head + in_tile) / p.group;
  const std::int64_t stride = static_cast<std::int64_t>(p.query_tiles) * kv_heads * p.tile_rows;
  const auto sums_of = [&](int part) { return p.partial_sums[part * stride + blockIdx.x]; };

  float top = -INFINITY;
  for (int part = threadIdx.x; part < parts; part += kDecodeMergeThreads) top = fmaxf(top, sums_of(part).x);
  top = block_reduce(top, exchanged, [](float a, float b) { return fmaxf(a, b); });

  RowSums sums{top, 0.f, 0.f, 0.f};  // of this thread's parts
  float out[kColumns / 32] = {};     // columns lane, lane + 32, ...
  for (int first = 0; first < parts; first += kDecodeMergeThreads) {
    const int own = first + threadIdx.x;
    const float4 part = own < parts ? sums_of(own) : make_float4(0.f, 0.f, 0.f, 0.f);
    const float share = join(sums, part);
    __syncthreads();
    shares[threadIdx.x] = share;
    __syncthreads();
    const int count = min(parts - first, kDecodeMergeThreads);
#pragma unroll 8
    for (int i = warp; i < count; i += kWarps) {
      const float* from = p.partial_out + ((first + i) * stride + blockIdx.x) * p.value_dim;
#pragma unroll
      for (int c = 0; c < kColumns / 32; ++c) {
        const bool used = shares[i] != 0.f && lane + 32 * c < p.value_dim;
        out[c] = fmaf(shares[i], used ? from[lane + 32 * c] : 0.f, out[c]);
      }
    }
  }
  const auto add = [](float a, float b) { return a + b; };
  sums.l = block_reduce(sums.l, exchanged, add);
  sums.a = block_reduce(sums.a, exchanged, add);
  sums.b = block_reduce(sums.b, exchanged, add);
#pragma unroll
  for (int c = 0; c < kColumns / 32; ++c) warp_out[warp][lane + 32 * c] = out[c];
  __syncthreads();

  const RowResult result = row_result(sums, sink_of(p, head));
  if (threadIdx.x == 0) store_row_results(p, result, batch, head, row);
  const float factor = result.factor * p.terms.dropout_keep_scale;
  Element* to = output_row<Element>(p, batch, head, row);
  for (int column = threadIdx.x; column < p.value_dim; column += kDecodeMergeThreads) {
    float sum = 0.f;
    for (int w = 0; w < kWarps; ++w) sum += warp_out[w][column];
    if (Repairs && !isfinite(sum) && isfinite(sums.l)) {
      sum = repaired_sum<Element>(p, cache, {tile, kv_head, in_tile}, column, parts, top);
    }
    to[column] = static_cast<Element>(sum * factor);
  }
}

template <class Element>
__global__ void __launch_bounds__(kDecodeMergeThreads)
    merge_kernel(const __grid_constant__ ForwardParams p, const __grid_constant__ CacheKeys cache) {
  merge_parts<Element, false>(p, cache);
}

// Five blocks per multiprocessor, like merge_kernel: without the bound repaired_sum() takes the registers of three.
template <class Element>
__global__ void __launch_bounds__(kDecodeMergeThreads, 5)
    merge_and_repair_kernel(const __grid_constant__ ForwardParams p, const __grid_constant__ CacheKeys cache) {
  merge_parts<Element, true>(p, cache);
}

}  // namespace rootdk::cuda::hopper
