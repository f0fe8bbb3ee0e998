#pragma once

// The small kernels before and after the backward kernel, with one block per tile of rows.

#include "cuda/hopper/backward/consumer.cuh"
#include "cuda/hopper/backward/repair.cuh"
#include "cuda/hopper/backward/tiles.cuh"
#include "cuda/ptx/global.cuh"
#include "cuda/ptx/grid_dependency.cuh"
#include "cuda/ptx/unpack.cuh"

namespace rootdk::cuda::hopper {

// The part of out . grad_out that lies in eight columns.
template <class Element>
__device__ __forceinline__ float dot_of_eight(const uint4& x, const uint4& y) {
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

// What the upstream gradient of row i's entropy adds to its delta; `gradient` receives that gradient.
__device__ __forceinline__ float add_entropy_row(const BackwardParams& p, const QueryTile& tile, int i, float lse,
                                                 float& gradient) {
  const int entry = tile.sequence.entry, row = tile.sequence.q_begin + i;
  gradient = lse == -INFINITY ? 0.f : p.grad_entropy(entry, tile.head, row);
  const float sink = p.rule.sinks ? expf(p.rule.sinks(tile.head) - lse) : 0.f;
  return gradient * (p.entropy(entry, tile.head, row) + sink);
}

// Rows to which no key tile adds have a gradient of 0.
template <class C>
__device__ __forceinline__ void clear_unvisited(const BackwardParams& p, const QueryTile& tile) {
  const Sequence& s = tile.sequence;
  if (!p.grad_q.data || key_tile_count<C>(p, tile.row0, s.shift(), s.kv_visible) > 0) return;
  const int vectors = p.rule.head_dim / 8;  // of 16 bytes
  for (int n = threadIdx.x; n < min(C::kBlockQ, s.q_len - tile.row0) * vectors; n += kPrepareThreads) {
    auto* row = row_of<typename C::Element>(p.grad_q, s.entry, tile.head, s.q_begin + tile.row0 + n / vectors);
    reinterpret_cast<uint4*>(row)[n % vectors] = make_uint4(0, 0, 0, 0);
  }
}

// One block per query tile computes negative_lse and delta of its rows and clears its turns. All blocks together clear
// the suspects.
template <class C>
__global__ void __launch_bounds__(kPrepareThreads) prepare_kernel(const __grid_constant__ BackwardParams p) {
  using Element = typename C::Element;
  constexpr int kRowThreads = C::kHeadDim > 128 ? 32 : C::kHeadDim / 8;  // threads that share a row, a power of two
  constexpr int kRowsOfThread = C::kBlockQ * kRowThreads / kPrepareThreads;
  ptx::allow_next_kernel();
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kPrepareThreads + threadIdx.x;
  if (thread == 0) *p.ticket = 0;
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * kPrepareThreads;
  for (std::int64_t i = thread; i < p.items + gridDim.x; i += threads) p.suspects[i] = 0;
  if (threadIdx.x < p.order.sums()) p.turns[threadIdx.x * gridDim.x + blockIdx.x] = 0;

  const QueryTile tile = query_tile<C>(static_cast<int>(blockIdx.x), p);
  if (tile.row0 >= tile.sequence.q_len) return;  // an unused tile number
  clear_unvisited<C>(p, tile);
  const int part = threadIdx.x % kRowThreads, entry = tile.sequence.entry;
  const bool has_part = 8 * part < p.rule.value_dim;
  const float slope_log2 = p.alibi_in_rows ? kLog2e * p.rule.alibi_slopes(tile.head) : 0.f;
  // All loads first: nothing else hides their latency.
  uint4 out[kRowsOfThread] = {}, grad_out[kRowsOfThread] = {};
  float lse[kRowsOfThread], grad_lse[kRowsOfThread] = {};
#pragma unroll
  for (int n = 0; n < kRowsOfThread; ++n) {
    const int i = tile.row0 + threadIdx.x / kRowThreads + n * (kPrepareThreads / kRowThreads);
    const bool exists = i < tile.sequence.q_len;
    const int row = tile.sequence.q_begin + i;
    if (exists && has_part) {
      out[n] = ptx::load_once(row_of<Element>(p.out, entry, tile.head, row) + 8 * part);
      grad_out[n] = ptx::load_once(row_of<Element>(p.grad_out, entry, tile.head, row) + 8 * part);
    }
    lse[n] = exists ? p.lse(entry, tile.head, row) : -INFINITY;
    if (exists && p.grad_lse) grad_lse[n] = p.grad_lse(entry, tile.head, row);
  }
#pragma unroll
  for (int n = 0; n < kRowsOfThread; ++n) {
    float sum = dot_of_eight<Element>(out[n], grad_out[n]);
#pragma unroll
    for (int offset = kRowThreads / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    const bool empty = lse[n] == -INFINITY;
    const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * C::kBlockQ + threadIdx.x / kRowThreads +
                            n * (kPrepareThreads / kRowThreads);
    if (part == 0) {
      p.negative_lse[at] = empty ? -INFINITY : -kLog2e * lse[n] - slope_log2 * static_cast<float>(at % C::kBlockQ);
      float delta = sum - grad_lse[n];
      if (p.grad_entropy_rows) {
        const int i = tile.row0 + threadIdx.x / kRowThreads + n * (kPrepareThreads / kRowThreads);
        p.grad_entropy_rows[at] = 0.f;
        if (i < tile.sequence.q_len) delta += add_entropy_row(p, tile, i, lse[n], p.grad_entropy_rows[at]);
      }
      p.delta[at] = empty ? 0.f : delta;
    }
  }
}

// Repairs the rows of a query tile whose gradient is not finite; one warp per row.
template <class C>
__device__ __forceinline__ void repair_query_tile(const BackwardParams& p, int index) {
  const QueryTile tile = query_tile<C>(index, p);
  for (int r = threadIdx.x / 32; r < min(C::kBlockQ, tile.sequence.q_len - tile.row0); r += kFinishThreads<C> / 32) {
    repair_query<C>(p, tile, tile.row0 + r, std::int64_t{index} * C::kBlockQ + r);
  }
}

// Adds up the partial sums of a query tile's gradient, scales and rounds them, and stores the rows.
template <class C>
__device__ __forceinline__ void finish_query_tile(const BackwardParams& p, int index) {
  const QueryTile tile = query_tile<C>(index, p);
  const Sequence& s = tile.sequence;
  if (tile.row0 >= s.q_len || !p.grad_q.data) return;
  const int key_tiles = key_tile_count<C>(p, tile.row0, s.shift(), s.kv_visible);
  if (key_tiles == 0) return;
  const int part = threadIdx.x / 128, thread = threadIdx.x & 127;
  const auto* source = reinterpret_cast<const float4*>(p.grad_q_tiles + std::int64_t{index} * C::kGradQElements +
                                                       part * C::kPartElements) +
                       thread;
  const std::int64_t sum_vectors = std::int64_t{p.queries.planes * p.queries.tiles} * (C::kGradQElements / 4);
  float gradient[32] = {};
#pragma unroll 1
  for (int sum = 0; sum < p.order.sums(); ++sum, source += sum_vectors) {
    if (!has_sum(p.order, sum, key_tiles)) continue;
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const float4 four = __ldcs(source + c * 128);
      gradient[4 * c] += four.x;
      gradient[4 * c + 1] += four.y;
      gradient[4 * c + 2] += four.z;
      gradient[4 * c + 3] += four.w;
    }
  }
  store_grad_q_part<C>(gradient, p, {s.entry, tile.head, s.q_begin + tile.row0}, s.q_len - tile.row0, part, thread);
  if (__syncthreads_or(!all_finite(gradient))) repair_query_tile<C>(p, index);
}

// Repairs the tiles that are flagged among kFinishThreads suspects: key tiles come first, then query tiles.
template <class C>
__device__ __forceinline__ void repair_suspects(const BackwardParams& p, int first) {
  const int suspects = p.items + p.queries.planes * p.queries.tiles;
  const int own = first + static_cast<int>(threadIdx.x);
  if (!__syncthreads_or(own < suspects && p.suspects[own] != 0)) return;
  for (int index = first; index < min(first + kFinishThreads<C>, suspects); ++index) {
    if (p.suspects[index] == 0) continue;
    if (index >= p.items) {
      repair_query_tile<C>(p, index - p.items);
      continue;
    }
    const KeyTile tile = key_tile<C>(index / p.keys.tiles, index % p.keys.tiles, p);
    for (int r = threadIdx.x / 32; r < min(C::kBlockKv, tile.kv_len - tile.key0); r += kFinishThreads<C> / 32) {
      repair_key<C>(p, tile, tile.key0 + r);
    }
  }
}

// First blocks of query tiles, unless their gradients are rounded already, in reverse order: the last tile was added to
// most recently and may still be in L2. Then blocks of suspects.
template <class C>
__global__ void __launch_bounds__(kFinishThreads<C>, 1024 / kFinishThreads<C>)
    finish_kernel(const __grid_constant__ BackwardParams p) {
  const int query_tiles = p.order.rounds ? 0 : p.queries.planes * p.queries.tiles;
  const int block = static_cast<int>(blockIdx.x);
  ptx::wait_for_previous_kernel();
  if (block < query_tiles) {
    finish_query_tile<C>(p, query_tiles - 1 - block);
  } else {
    repair_suspects<C>(p, (block - query_tiles) * kFinishThreads<C>);
  }
}

}  // namespace rootdk::cuda::hopper
