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

// Reduces x over the warp in a fixed order; every thread gets the result.
template <class Join>
__device__ __forceinline__ float warp_reduce(float x, Join join) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = join(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}

// What the threads of a merging block exchange.
struct MergeStorage {
  static constexpr int kWarps = kDecodeMergeThreads / 32, kColumns = 256;
  float tops[kWarps];
  float shares[kDecodeMergeThreads];  // of the parts of one round
  float3 sums[kWarps];
  float out[kWarps][kColumns];
};

// A warp's share of the outputs of one part: columns lane, lane + 32, ...
struct PartColumns {
  static constexpr int kColumns = MergeStorage::kColumns / 32;
  float of[kColumns] = {};

  __device__ __forceinline__ void load(const float* part_out, int value_dim) {
    const int lane = static_cast<int>(threadIdx.x & 31);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) of[c] = lane + 32 * c < value_dim ? part_out[lane + 32 * c] : 0.f;
  }
  // A part without a share has no output: what was loaded may be anything.
  __device__ __forceinline__ void add(float share, const PartColumns& part) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) of[c] = fmaf(share, share != 0.f ? part.of[c] : 0.f, of[c]);
  }
};

// Merges the parts of every row, one block per row. First each part's share is computed, then the outputs are added:
// warp w takes the parts w, w + 8, ... of each round, and the sums of the warps are added in order. The first outputs
// are loaded before the shares are known: the kernel is short, and the latency of a load is much of its time.
template <class Element, bool Repairs>
__device__ __forceinline__ void merge_parts(const ForwardParams& p, const CacheKeys& cache) {
  constexpr int kWarps = MergeStorage::kWarps, kEarly = 2;
  __shared__ MergeStorage shared;
  const int kv_heads = p.heads / p.group, warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const int tile = blockIdx.x / p.tile_rows / kv_heads, kv_head = blockIdx.x / p.tile_rows % kv_heads;
  const int in_tile = blockIdx.x % p.tile_rows;

  ptx::allow_next_kernel();
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
  const auto out_of = [&](int part) { return p.partial_out + (part * stride + blockIdx.x) * p.value_dim; };

  const bool has_own = static_cast<int>(threadIdx.x) < parts;
  const float4 first_sums = has_own ? sums_of(threadIdx.x) : make_float4(-INFINITY, 0.f, 0.f, 0.f);
  PartColumns early[kEarly];
#pragma unroll
  for (int e = 0; e < kEarly; ++e) {
    if (warp + kWarps * e < parts) early[e].load(out_of(warp + kWarps * e), p.value_dim);
  }

  const auto larger = [](float a, float b) { return fmaxf(a, b); };
  float top = first_sums.x;
  for (int part = threadIdx.x + kDecodeMergeThreads; part < parts; part += kDecodeMergeThreads) {
    top = fmaxf(top, sums_of(part).x);
  }
  top = warp_reduce(top, larger);
  if (lane == 0) shared.tops[warp] = top;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kWarps; ++w) top = fmaxf(top, shared.tops[w]);

  RowSums sums{top, 0.f, 0.f, 0.f};  // of this thread's parts
  PartColumns out;
  for (int first = 0; first < parts; first += kDecodeMergeThreads) {
    const int own = first + static_cast<int>(threadIdx.x);
    const float4 none = make_float4(0.f, 0.f, 0.f, 0.f);
    const float share = join(sums, own >= parts ? none : first == 0 ? first_sums : sums_of(own));
    if (first > 0) __syncthreads();
    shared.shares[threadIdx.x] = share;
    __syncthreads();
    const int count = min(parts - first, kDecodeMergeThreads);
    int i = warp;
    if (first == 0) {
#pragma unroll
      for (int e = 0; e < kEarly; ++e, i += kWarps) {
        if (i < count) out.add(shared.shares[i], early[e]);
      }
    }
#pragma unroll 4
    for (; i < count; i += kWarps) {
      PartColumns part;
      part.load(out_of(first + i), p.value_dim);
      out.add(shared.shares[i], part);
    }
  }
  const auto add = [](float a, float b) { return a + b; };
  sums.l = warp_reduce(sums.l, add);
  sums.a = warp_reduce(sums.a, add);
  sums.b = warp_reduce(sums.b, add);
  if (lane == 0) shared.sums[warp] = make_float3(sums.l, sums.a, sums.b);
#pragma unroll
  for (int c = 0; c < PartColumns::kColumns; ++c) shared.out[warp][lane + 32 * c] = out.of[c];
  __syncthreads();
  sums = {top, 0.f, 0.f, 0.f};
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    sums.l += shared.sums[w].x;
    sums.a += shared.sums[w].y;
    sums.b += shared.sums[w].z;
  }

  const RowResult result = row_result(sums, sink_of(p, head));
  if (threadIdx.x == 0) store_row_results(p, result, batch, head, row);
  const float factor = result.factor * p.terms.dropout_keep_scale;
  Element* to = output_row<Element>(p, batch, head, row);
  for (int column = threadIdx.x; column < p.value_dim; column += kDecodeMergeThreads) {
    float sum = 0.f;
    for (int w = 0; w < kWarps; ++w) sum += shared.out[w][column];
    if (Repairs && !isfinite(sum) && isfinite(sums.l)) {
      sum = repaired_sum<Element>(p, cache, {tile, kv_head, in_tile}, column, parts, top);
    }
    to[column] = static_cast<Element>(sum * factor);
  }
}

template <class Element>
__global__ void __launch_bounds__(kDecodeMergeThreads, 4)
    merge_kernel(const __grid_constant__ ForwardParams p, const __grid_constant__ CacheKeys cache) {
  merge_parts<Element, false>(p, cache);
}

// Four blocks per multiprocessor, like merge_kernel: without the bound repaired_sum() takes the registers of three.
template <class Element>
__global__ void __launch_bounds__(kDecodeMergeThreads, 4)
    merge_and_repair_kernel(const __grid_constant__ ForwardParams p, const __grid_constant__ CacheKeys cache) {
  merge_parts<Element, true>(p, cache);
}

}  // namespace rootdk::cuda::hopper
