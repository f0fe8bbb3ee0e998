#pragma once

// The work of one decode block: which rows, and which keys they see.

#include "cuda/hopper/decode/config.h"
#include "cuda/hopper/shared/work_tiles.cuh"

namespace rootdk::cuda::hopper {

// A query at position i sees the keys up to i + right that exist, without two gaps: what was evicted, and what the
// window hides.
__device__ __forceinline__ int keys_end(const DecodePart& part, const ForwardParams& p, int i) {
  return min(part.keys, i + p.right + 1);
}
__device__ __forceinline__ bool keeps(const DecodePart& part, const ForwardParams& p, int i, int key) {
  const bool hidden = key >= part.keeps_first && key < i - p.left;
  const bool evicted = key >= part.evicted_begin && key < part.evicted_end;
  return key < keys_end(part, p, i) && !hidden && !evicted;
}
// Whether any row sees a key of [begin, end). The window of the first row hides the fewest keys, and the keys of the
// last row reach the farthest.
__device__ __forceinline__ bool any_sees(const DecodePart& part, const ForwardParams& p, int begin, int end) {
  const bool hidden = begin >= part.keeps_first && end <= part.position - p.left;
  const bool evicted = begin >= part.evicted_begin && end <= part.evicted_end;
  return begin < keys_end(part, p, part.position + part.tokens - 1) && !hidden && !evicted;
}
// Whether all rows see all of them.
__device__ __forceinline__ bool all_see(const DecodePart& part, const ForwardParams& p, int begin, int end) {
  const bool hidden = begin < part.position + part.tokens - 1 - p.left && end > part.keeps_first;
  const bool evicted = begin < part.evicted_end && end > part.evicted_begin;
  return end <= keys_end(part, p, part.position) && !hidden && !evicted;
}

// The rows of a query tile, and which keys exist for them.
__device__ __forceinline__ DecodePart rows_of_cache_tile(const ForwardParams& p, const CacheKeys& cache, int index,
                                                         int kv_head) {
  const CacheTile tile = cache.tiles[index];
  DecodePart part{};
  part.tile = index;
  part.kv_head = kv_head;
  part.row = tile.row;
  part.rows = tile.rows;
  part.first_head = tile.first_head;
  part.tokens = (tile.first_head + tile.rows - 1) / p.group + 1;
  part.position = tile.position;
  part.keys = tile.position + part.tokens;
  part.keeps_first = cache.keeps_first;
  part.evicted_begin = tile.evicted_begin;
  part.evicted_end = tile.evicted_end;
  part.table = tile.table;
  return part;
}
__device__ __forceinline__ DecodePart rows_of_tensor_tile(const ForwardParams& p, int index, int kv_head) {
  DecodePart part{};
  part.batch = part.tile = index;
  part.kv_head = kv_head;
  part.tokens = p.q_len;
  part.rows = p.q_len * p.group;
  part.position = p.kv_len - p.q_len;
  part.keys = p.kv_lengths.data ? visible_keys(p, part.batch) : p.kv_len;
  return part;
}

template <class C>
__device__ __forceinline__ DecodePart decode_part(const ForwardParams& p, const CacheKeys& cache) {
  const int kv_heads = p.heads / p.group;
  if constexpr (C::kCached) {
    const int runs = (p.splits + cache.chunks_together - 1) / cache.chunks_together;
    const int run = blockIdx.x % runs;
    DecodePart part = rows_of_cache_tile(p, cache, blockIdx.x / runs / kv_heads, blockIdx.x / runs % kv_heads);
    part.first_part = run * cache.chunks_together;
    part.last_part = min(part.first_part + cache.chunks_together, (part.keys + kChunkKeys - 1) / kChunkKeys);
    part.part_tiles = kChunkKeys / C::kBlockKv;
    return part;
  } else {
    DecodePart part = rows_of_tensor_tile(p, blockIdx.x / p.splits / kv_heads, blockIdx.x / p.splits % kv_heads);
    part.first_part = blockIdx.x % p.splits;
    part.last_part = part.first_part + 1;
    part.part_tiles = p.split_tiles;
    return part;
  }
}

// Calls body(j) for every key tile j that some row sees, in order, and begin(part) and end(part) around each part.
// Producer and consumers use the same loop, so that they agree on which tiles pass through the ring.
template <class C, class Begin, class Body, class End>
__device__ __forceinline__ void walk_parts(const DecodePart& part, const ForwardParams& p, Begin begin, Body body,
                                           End end) {
#pragma unroll 1
  for (int index = part.first_part; index < part.last_part; ++index) {
    begin(index);
#pragma unroll 1
    for (int j = index * part.part_tiles; j < (index + 1) * part.part_tiles; ++j) {
      if (any_sees(part, p, j * C::kBlockKv, (j + 1) * C::kBlockKv)) body(j);
    }
    end(index);
  }
}

}  // namespace rootdk::cuda::hopper
