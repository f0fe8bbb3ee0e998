#pragma once

// Which query tile a block works on next, and which keys that tile needs.

#include <climits>

#include "cuda/hopper/shared/params.h"
#include "cuda/hopper/shared/tile_config.h"
#include "cuda/ptx/grid_dependency.cuh"

namespace rootdk::cuda::hopper {

// Assigns query tiles to blocks, in one of three ways. With a counter: a block that is free takes the next tile. In
// shares: each block has tile_share consecutive tiles. Otherwise in waves, every other wave in reverse order, so that
// the block with the longest tile of one wave gets the shortest tile of the next.
class TileDealer {
 public:
  __device__ explicit TileDealer(const ForwardParams& params)
      : params_(params), tile_(static_cast<int>(blockIdx.x) * max(1, params.tile_share)) {}
  __device__ int tile() const { return tile_; }
  __device__ bool done() const {
    const int share_end = static_cast<int>(blockIdx.x + 1) * params_.tile_share;
    return tile_ >= (params_.tile_share ? min(share_end, params_.tiles) : params_.tiles);
  }

  __device__ void advance() {
    const int grid = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
    if (params_.tile_counter) {
      ptx::wait_for_previous_kernel();  // which clears the counter
      tile_ = grid + atomicAdd(params_.tile_counter, 1);
    } else if (params_.tile_share) {
      ++tile_;
    } else {
      ++wave_;
      tile_ = wave_ * grid + (wave_ % 2 ? grid - 1 - block : block);
    }
  }

 private:
  const ForwardParams& params_;
  int tile_;
  int wave_ = 0;
};

// Lengths and starts are in device memory, where the host cannot check them. They are clamped here, so that no row or
// key outside the tensors is loaded.
__device__ __forceinline__ int visible_keys(const ForwardParams& p, int sequence) {
  return min(max(p.kv_lengths.data[sequence * p.kv_lengths.stride], 0), p.kv_len);
}

// The rows of a packed sequence, clamped to the tensor. As unsigned numbers negative starts are the largest.
struct PackedRows {
  int begin, len;
};
__device__ __forceinline__ PackedRows packed_rows(const DeviceVector<std::int32_t>& starts, int sequence, int rows) {
  const auto start = [&](int s) {
    return static_cast<int>(min(static_cast<unsigned>(starts.data[s * starts.stride]), static_cast<unsigned>(rows)));
  };
  const int begin = start(sequence);
  return {begin, max(start(sequence + 1) - begin, 0)};
}

// Query tiles are aligned to the end of the sequence: the first tile has the remainder, in units of 64 rows. Under
// causal masking the last rows have the most keys, so that a warpgroup without rows is idle in the tile with the least
// work.
template <class C>
__device__ __forceinline__ int rows_of_first_tile(int q_len) {
  return ((q_len - 1) % C::kBlockQ) / 64 * 64 + 64;
}
template <class C>
__device__ __forceinline__ int first_row(int q_tile, int q_len) {
  return C::kRanged && q_tile > 0 ? rows_of_first_tile<C>(q_len) + (q_tile - 1) * C::kBlockQ : q_tile * C::kBlockQ;
}
// One past the tile's last row.
template <class C>
__device__ __forceinline__ int query_end(const WorkTile& t) {
  const bool first = C::kRanged && t.q0 == 0;
  return min(t.q_len, first ? rows_of_first_tile<C>(t.q_len) : t.q0 + C::kBlockQ);
}
// Whether query tiles have two heights: a head has tall_tiles of kBlockQ rows, and then some of 64 rows less.
template <class C>
constexpr bool mixes_heights() {
  if constexpr (requires { C::kMixed; }) return C::kMixed;
  return false;
}
template <class C>
__device__ __forceinline__ int query_end(const WorkTile& t, const ForwardParams& p) {
  if constexpr (mixes_heights<C>()) {
    return min(t.q_len, t.q0 + (t.q0 < p.tall_tiles * C::kBlockQ ? C::kBlockQ : C::kBlockQ - 64));
  } else {
    return query_end<C>(t);
  }
}
template <class C>
__device__ __forceinline__ int query_tile(const WorkTile& t) {
  return (t.q0 + C::kBlockQ - 1) / C::kBlockQ;
}

// Tall tiles of all heads come first, so that the blocks that get one less end together with the others.
template <class C>
__device__ __forceinline__ WorkTile mixed_tile(int index, const ForwardParams& p) {
  const int tall = p.tall_tiles * p.heads * p.sequences;
  const bool is_tall = index < tall;
  const int of_head = is_tall ? p.tall_tiles : p.q_tiles - p.tall_tiles, rest = is_tall ? index : index - tall;
  const int head_index = rest / of_head, q_tile = rest - head_index * of_head;
  const int sequence = head_index / p.heads;
  return {.sequence = sequence,
          .head = head_index - sequence * p.heads,
          .q0 = is_tall ? q_tile * C::kBlockQ : p.tall_tiles * C::kBlockQ + q_tile * (C::kBlockQ - 64),
          .q_begin = 0,
          .q_len = p.q_len,
          .kv_begin = 0,
          .kv_len = p.kv_len,
          .kv_visible = p.kv_len};
}

template <class C>
__device__ __forceinline__ WorkTile work_tile(int index, const ForwardParams& p) {
  if constexpr (mixes_heights<C>()) return mixed_tile<C>(index, p);
  int head_index, q_tile;  // head_index counts heads of all sequences
  if constexpr (!C::kRanged) {
    head_index = index / p.q_tiles;
    q_tile = index - head_index * p.q_tiles;
  } else {
    // Bundles of heads. Inside a bundle the tiles with the most keys come first, and heads vary fastest.
    const int bundle_tiles = p.q_tiles * p.heads_together;
    const int bundle = index / bundle_tiles, rest = index - bundle * bundle_tiles;
    const int first_head = bundle * p.heads_together;
    const int heads = min(p.heads_together, p.sequences * p.heads - first_head);
    const int row = rest / heads;
    q_tile = p.q_tiles - 1 - row;
    head_index = first_head + rest - row * heads;
  }
  WorkTile t;
  t.sequence = head_index / p.heads;
  t.head = head_index - t.sequence * p.heads;
  t.q_begin = t.kv_begin = 0;
  t.q_len = p.q_len;
  t.kv_len = t.kv_visible = p.kv_len;
  if constexpr (C::kRanged) {
    if (p.q_starts.data) {
      const PackedRows q = packed_rows(p.q_starts, t.sequence, p.q_rows);
      const PackedRows kv = packed_rows(p.kv_starts, t.sequence, p.kv_rows);
      t.q_begin = q.begin;
      t.q_len = q.len;
      t.kv_begin = kv.begin;
      t.kv_len = t.kv_visible = kv.len;
    } else if (p.kv_lengths.data) {
      t.kv_visible = visible_keys(p, t.sequence);
    }
  }
  t.q0 = first_row<C>(q_tile, t.q_len);
  return t;
}

// The keys [begin, end) that a row sees, counted inside the sequence; empty where end <= begin.
struct KeyRange {
  int begin, end;
};
template <class C>
__device__ __forceinline__ KeyRange key_range(const WorkTile& t, const ForwardParams& p, int row) {
  if constexpr (!C::kRanged) {
    return {0, t.kv_visible};
  } else {
    const int position = row + t.kv_len - t.q_len;
    return {max(0, position - p.left), min(t.kv_visible, position + p.right + 1)};
  }
}

// Key tiles [first, last] of a query tile, visited from last to first. There is always at least one; all its keys may
// be masked.
struct KeyTiles {
  int first, last;
};
template <class C>
__device__ __forceinline__ KeyTiles key_tiles(const WorkTile& t, const ForwardParams& p) {
  const int end = key_range<C>(t, p, query_end<C>(t, p) - 1).end;
  const int last = max(end - 1, 0) / C::kBlockKv;
  const int first = C::kRanged ? min(last, key_range<C>(t, p, t.q0).begin / C::kBlockKv) : 0;
  return {first, last};
}

// The index of a tile's first row among the rows of Fp8Scales.
__device__ __forceinline__ std::int64_t fp8_row(const WorkTile& tile, const ForwardParams& p) {
  const std::int64_t batch = p.q_starts.data ? 0 : tile.sequence;
  return (batch * p.heads + tile.head) * p.q_rows + tile.q_begin + tile.q0;
}

}  // namespace rootdk::cuda::hopper
