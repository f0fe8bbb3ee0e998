#pragma once

// The small kernels around the backward kernel: a block a tile of rows.

#include "cuda/hopper/backward_consumer.cuh"
#include "cuda/hopper/backward_repair.cuh"
#include "cuda/hopper/backward_tiles.cuh"
#include "cuda/ptx/grid_dependency.cuh"
#include "cuda/ptx/unpack.cuh"

namespace rootdk::cuda::hopper {

// The part of out . grad_out that lies in eight columns.
template <class Element>
__device__ __forceinline__ float dot_of_eight(const Element* a, const Element* b) {
  const uint4 x = *reinterpret_cast<const uint4*>(a), y = *reinterpret_cast<const uint4*>(b);
  const std::uint32_t xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 u = ptx::unpack<Element>(xs[i]), w = ptx::unpack<Element>(ys[i]);
    sum = fmaf(u.x, w.x, sum);
    sum = fmaf(u.y, w.y, sum);
  }
  return sum;
}

// A block a query tile: negative_lse and delta of its rows, its turn; all blocks together clear the suspects.
template <class C>
__global__ void __launch_bounds__(kRowPassThreads) prepare_kernel(const __grid_constant__ BackwardParams p) {
  using Element = typename C::Element;
  constexpr int kLanes = C::kHeadDim / 8;  // of a row
  constexpr int kRowsOfThread = C::kBlockQ * kLanes / kRowPassThreads;
  ptx::allow_next_kernel();
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kRowPassThreads + threadIdx.x;
  if (thread == 0) *p.ticket = 0;
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * kRowPassThreads;
  for (std::int64_t i = thread; i < p.items; i += threads) p.suspects[i] = 0;
  if (threadIdx.x < p.order.lanes()) p.turns[threadIdx.x * gridDim.x + blockIdx.x] = 0;

  const QueryTile tile = query_tile<C>(static_cast<int>(blockIdx.x), p);
  if (tile.row0 >= tile.sequence.q_len) return;  // a wasted slot
  const int part = threadIdx.x % kLanes, entry = tile.sequence.entry;
  const bool has_part = 8 * part < p.rule.value_dim;
  // All loads first: nothing else hides their latency.
  float sum[kRowsOfThread] = {}, lse[kRowsOfThread], grad_lse[kRowsOfThread] = {};
#pragma unroll
  for (int n = 0; n < kRowsOfThread; ++n) {
    const int i = tile.row0 + threadIdx.x / kLanes + n * (kRowPassThreads / kLanes);
    const bool exists = i < tile.sequence.q_len;
    const int row = tile.sequence.q_begin + i;
    if (exists && has_part) {
      sum[n] = dot_of_eight(row_of<Element>(p.out, entry, tile.head, row) + 8 * part,
                            row_of<Element>(p.grad_out, entry, tile.head, row) + 8 * part);
    }
    lse[n] = exists ? p.lse(entry, tile.head, row) : -INFINITY;
    if (exists && p.grad_lse) grad_lse[n] = p.grad_lse(entry, tile.head, row);
  }
#pragma unroll
  for (int n = 0; n < kRowsOfThread; ++n) {
#pragma unroll
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) sum[n] += __shfl_xor_sync(0xffffffffu, sum[n], lanes);
    const bool empty = lse[n] == -INFINITY;
    const std::int64_t at =
        static_cast<std::int64_t>(blockIdx.x) * C::kBlockQ + threadIdx.x / kLanes + n * (kRowPassThreads / kLanes);
    if (part == 0) {
      p.negative_lse[at] = empty ? -INFINITY : -kLog2e * lse[n];
      p.delta[at] = empty ? 0.f : sum[n] - grad_lse[n];
    }
  }
}

// The gradient of q of one query tile from its f32 tiles: added up, scaled, rounded, row by row.
template <class C>
__device__ __forceinline__ void finish_query_tile(const BackwardParams& p, int index, bool (&broken)[C::kBlockQ]) {
  using Element = typename C::Element;
  const QueryTile tile = query_tile<C>(index, p);
  const Sequence& s = tile.sequence;
  if (tile.row0 >= s.q_len || !p.grad_q.data) return;
  const int lanes = min(p.order.lanes(), key_tile_count<C>(p, tile.row0, s.shift(), s.kv_visible));
  const int half = threadIdx.x / 128, thread = threadIdx.x & 127;
  const auto* source = reinterpret_cast<const float4*>(p.grad_q_tiles + std::int64_t{index} * C::kGradQElements +
                                                       half * C::kHalfElements) +
                       thread;
  const std::int64_t lane_vectors = std::int64_t{p.queries.planes * p.queries.slots} * (C::kGradQElements / 4);
  float gradient[32] = {};
#pragma unroll 1
  for (int lane = 0; lane < lanes; ++lane, source += lane_vectors) {
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const float4 four = __ldcs(source + c * 128);
      gradient[4 * c] += four.x;
      gradient[4 * c + 1] += four.y;
      gradient[4 * c + 2] += four.z;
      gradient[4 * c + 3] += four.w;
    }
  }
  const int column0 = C::kHalvesAreColumns ? 64 * half : 0;
  const int row = (C::kHalvesAreColumns ? 0 : 64 * half) + (thread / 32) * 16 + (thread & 31) / 4;
  Element* first = row_of<Element>(p.grad_q, s.entry, tile.head, s.q_begin + tile.row0) + column0;
  store_gradient<Element, 64>(gradient, p.rule.scale, first, p.grad_q.row_stride, row, s.q_len - tile.row0,
                              p.rule.head_dim - column0);

  if (!__syncthreads_or(!all_finite(gradient))) return;
  for (int r = threadIdx.x; r < C::kBlockQ; r += kRowPassThreads) broken[r] = false;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    if (!isfinite(gradient[i])) broken[row + 8 * ((i / 2) % 2)] = true;
  }
  __syncthreads();
  for (int r = threadIdx.x / 32; r < min(C::kBlockQ, s.q_len - tile.row0); r += kRowPassThreads / 32) {
    if (broken[r]) repair_query<C>(p, tile, tile.row0 + r, std::int64_t{index} * C::kBlockQ + r);
  }
}

// The key tiles among kRowPassThreads of them whose gradients are not finite.
template <class C>
__device__ __forceinline__ void finish_key_tiles(const BackwardParams& p, int first) {
  const int own = first + static_cast<int>(threadIdx.x);
  if (!__syncthreads_or(own < p.items && p.suspects[own] != 0)) return;
  for (int index = first; index < min(first + kRowPassThreads, p.items); ++index) {
    if (p.suspects[index] == 0) continue;
    const KeyTile tile = key_tile<C>(index / p.keys.slots, index % p.keys.slots, p);
    for (int r = threadIdx.x / 32; r < min(C::kBlockKv, tile.kv_len - tile.key0); r += kRowPassThreads / 32) {
      repair_key<C>(p, tile, tile.key0 + r);
    }
  }
}

// Blocks of query tiles, the last first: it was added to last and may still be in L2. Then blocks of key tiles.
template <class C>
__global__ void __launch_bounds__(kRowPassThreads, 4) finish_kernel(const __grid_constant__ BackwardParams p) {
  __shared__ bool broken[C::kBlockQ];
  const int query_tiles = p.queries.planes * p.queries.slots, block = static_cast<int>(blockIdx.x);
  ptx::wait_for_previous_kernel();
  if (block < query_tiles) {
    finish_query_tile<C>(p, query_tiles - 1 - block, broken);
  } else {
    finish_key_tiles<C>(p, (block - query_tiles) * kRowPassThreads);
  }
}

}  // namespace rootdk::cuda::hopper
