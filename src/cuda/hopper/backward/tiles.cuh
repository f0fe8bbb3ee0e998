#pragma once

// Which key tile a block works on next, which query tiles see it, and in which order key tiles add to a query tile.

#include "cuda/hopper/backward/config.h"
#include "cuda/ptx/address.cuh"

namespace rootdk::cuda::hopper {

// The packed sequence to which a tile number belongs: the last with starts[s] / block + s <= number.
__device__ __forceinline__ int sequence_of_tile(const DeviceView<const int, 1>& starts, int sequences, int number,
                                                int block) {
  int low = 0, high = sequences;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (starts(middle) / block + middle <= number ? low : high) = middle;
  }
  return low;
}

// A query tile of one head.
struct QueryTile {
  Sequence sequence;
  int head;
  int row0;  // first row, counted inside the sequence; past the end if the number is unused
};
template <class C>
__device__ __forceinline__ QueryTile query_tile(int index, const BackwardParams& p) {
  const int plane = index / p.queries.tiles, number = index - plane * p.queries.tiles;
  if (p.rule.q_starts) {
    const int s = sequence_of_tile(p.rule.q_starts, p.rule.batch, number, C::kBlockQ);
    const Sequence sequence = p.rule.sequence(s);
    return {sequence, plane, (number - (sequence.q_begin / C::kBlockQ + s)) * C::kBlockQ};
  }
  const int entry = plane / p.rule.heads;
  return {p.rule.sequence(entry), plane - entry * p.rule.heads, number * C::kBlockQ};
}

// The number of the first query tile of a head of a sequence.
template <class C>
__device__ __forceinline__ int first_query_tile(const BackwardParams& p, int sequence, int head, int q_begin) {
  const bool packed = static_cast<bool>(p.rule.q_starts);
  const int plane = packed ? head : sequence * p.rule.heads + head;
  return plane * p.queries.tiles + (packed ? q_begin / C::kBlockQ + sequence : 0);
}

// The order in which key tiles add to the gradient of a query tile, each exactly once. A query tile has sums() partial
// sums: the key tile of rank r adds to sum r % sums, as number r / sums, and the sums are added at the end.
//
// Plain order: key tiles add in ascending order. All walk over the query tiles from the last to the first, each one
// query tile behind the key tile before it. Items are drawn in this order, so that the oldest unfinished item never
// waits.
//
// Ring order, if every row sees every key: key tile j starts at query tile ((j + 1) << shift) - 1 and wraps around, so
// that no key tile has to fall behind first. All key tiles of a head must run at the same time.
//
// Ascending order, for the first AddOrder::ascending key tiles under causal masking: each walks upwards from the first
// query tile that sees it. The higher-index key tile reaches each query tile first, so they add in descending order.
// They must run at the same time, too. The other key tiles follow the plain order, with separate sums.
__device__ __forceinline__ int ring_start(const BackwardParams& p, int j) {
  return min((j + 1) << p.order.ring_shift, p.queries.tiles) - 1;
}
template <class C>
__device__ __forceinline__ int first_key_tile(const BackwardParams& p, int row0, int shift) {
  return max(0, row0 + shift - p.left) / C::kBlockKv;
}
template <class C>
__device__ __forceinline__ int rank_of(const BackwardParams& p, int j, int i, int shift) {
  if (!p.order.ring) return j - first_key_tile<C>(p, i * C::kBlockQ, shift);
  const int rank = j - (i >> p.order.ring_shift);  // rank 0 starts at i or just after it
  return rank < 0 ? rank + p.keys.tiles : rank;
}
template <class C>
__device__ __forceinline__ int last_key(const BackwardParams& p, int row0, int shift, int kv_visible) {
  return min(kv_visible - 1, row0 + C::kBlockQ - 1 + shift + p.right);
}
// How many key tiles add to a query tile.
template <class C>
__device__ __forceinline__ int key_tile_count(const BackwardParams& p, int row0, int shift, int kv_visible) {
  const int last = last_key<C>(p, row0, shift, kv_visible);
  if (last < 0 || row0 + shift - p.left >= kv_visible) return 0;
  return last / C::kBlockKv - first_key_tile<C>(p, row0, shift) + 1;
}

// To which sum of query tile i a key tile adds, and how many key tiles add to that sum before it.
struct AddTurn {
  int sum, number;
};
template <class C>
__device__ __forceinline__ AddTurn add_turn(const BackwardParams& p, const KeyTile& t, int i) {
  const AddOrder& order = p.order;
  const int j = t.key0 / C::kBlockKv;
  if (j < order.ascending) {
    const int last = last_key<C>(p, i * C::kBlockQ, t.shift(), t.kv_visible) / C::kBlockKv;
    const int rank = min(order.ascending - 1, last) - j;
    return {rank & (order.ascending_sums() - 1), rank >> order.ascending_sum_shift};
  }
  const int rank = rank_of<C>(p, j, i, t.shift()) - order.ascending;
  return {order.ascending_sums() + (rank & ((1 << order.sum_shift) - 1)), rank >> order.sum_shift};
}
// Whether any of the `count` key tiles that visit a query tile adds to the sum. In the separate pass over queries every
// part writes its sum, even if it has no keys.
__device__ __forceinline__ bool has_sum(const AddOrder& order, int sum, int count) {
  if (order.parts) return true;
  const int ascending_sums = order.ascending_sums();
  return sum < ascending_sums ? sum < min(order.ascending, count) : sum - ascending_sums < count - order.ascending;
}

// If the order rounds, the last key tile that adds to a query tile rounds the sum and stores it. A key tile's rounded
// query tiles are consecutive. In ring order they are the last ones of its walk. In plain order they are those whose
// rows see no later key: all of them for the last key tile, otherwise all up to a limit.
template <class C>
__device__ __forceinline__ void find_rounded_tiles(KeyTile& t, const BackwardParams& p) {
  t.rounds_first = 0;
  t.rounds_last = -1;
  if (!p.order.rounds) return;
  const int j = t.key0 / C::kBlockKv;
  if (p.order.ring) {
    const int next = j + 1 == p.keys.tiles ? 0 : j + 1;
    t.rounds_first = next << p.order.ring_shift;
    t.rounds_last = t.rounds_first + (1 << p.order.ring_shift) - 1;
  } else if (j == (t.kv_visible - 1) / C::kBlockKv) {
    t.rounds_last = t.begin;
  } else {
    const int rows = t.key0 + C::kBlockKv - t.shift() - p.right;  // rows below this see no later key
    t.rounds_last = max(rows, 0) / C::kBlockQ - 1;
  }
}

// Fills in the query tiles that see any key of the tile, and those that need no mask. Rows up to the end of their tile
// count even if they do not exist: key tiles and query tiles must agree on which pairs meet.
template <class C>
__device__ __forceinline__ void find_query_tiles(KeyTile& t, const BackwardParams& p) {
  t.first_row = t.key0 - p.right - t.shift();
  t.keys = t.kv_visible - t.key0;
  const int last_key = min(t.key0 + C::kBlockKv, t.kv_visible) - 1;
  const int last_row = min(t.q_len - 1, last_key + p.left - t.shift());
  const int first = max(0, t.first_row) / C::kBlockQ;
  const int last = t.key0 >= t.kv_visible || last_row < 0 ? -1 : last_row / C::kBlockQ;
  const bool upwards = t.key0 < p.order.ascending * C::kBlockKv;
  t.tiles = max(0, last - first + 1);
  t.end = upwards ? last : first;
  t.begin = upwards ? first : last;
  t.start = p.order.ring ? ring_start(p, t.key0 / C::kBlockKv) : t.begin;

  const int first_full_row = max(0, t.first_row + C::kBlockKv - 1);
  const int end_full_row = t.key0 + C::kBlockKv > t.kv_visible ? 0 : t.key0 + p.left - t.shift() + 1;
  t.unmasked_first = (first_full_row + C::kBlockQ - 1) / C::kBlockQ;
  t.unmasked_last = max(0, end_full_row) / C::kBlockQ - 1;
  find_rounded_tiles<C>(t, p);
}

// The key tile of a number in a plane; past the end of its sequence if the number is unused.
template <class C>
__device__ __forceinline__ KeyTile key_tile(int plane, int number, const BackwardParams& p) {
  const bool packed = static_cast<bool>(p.rule.q_starts);
  const int index =
      packed ? sequence_of_tile(p.rule.kv_starts, p.rule.batch, number, C::kBlockKv) : plane / p.rule.kv_heads;
  const Sequence s = p.rule.sequence(index);
  KeyTile t;
  t.sequence = index;
  t.kv_head = packed ? plane : plane - index * p.rule.kv_heads;
  t.key0 = (packed ? number - (s.kv_begin / C::kBlockKv + index) : number) * C::kBlockKv;
  t.q_begin = s.q_begin;
  t.q_len = s.q_len;
  t.kv_begin = s.kv_begin;
  t.kv_len = s.kv_len;
  t.kv_visible = s.kv_visible;
  find_query_tiles<C>(t, p);
  return t;
}

// The key tile of a work item. Items are ordered by bundles of planes; inside a bundle by ascending key tile (under
// causal masking the longest first), with planes varying fastest.
template <class C>
__device__ __forceinline__ KeyTile work_item(int item, const BackwardParams& p) {
  const int bundle_items = p.keys.tiles * p.heads_together;
  const int bundle = item / bundle_items, rest = item - bundle * bundle_items;
  const int first_plane = bundle * p.heads_together;
  const int planes = min(p.heads_together, p.keys.planes - first_plane);
  const int number = rest / planes;
  return key_tile<C>(first_plane + rest - number * planes, number, p);
}

// The index of the key tile's flag in `suspects`.
template <class C>
__device__ __forceinline__ int key_tile_index(const BackwardParams& p, const KeyTile& t) {
  const bool packed = static_cast<bool>(p.rule.q_starts);
  const int plane = packed ? t.kv_head : t.sequence * p.rule.kv_heads + t.kv_head;
  return plane * p.keys.tiles + t.key0 / C::kBlockKv + (packed ? t.kv_begin / C::kBlockKv + t.sequence : 0);
}

// The batch index of a tile's sequence in the tensors.
__device__ __forceinline__ int entry_of(const KeyTile& t, const BackwardParams& p) {
  return p.rule.q_starts ? 0 : t.sequence;
}

__device__ __forceinline__ KeyTile read_key_tile(std::uint32_t address) {
  const int4 a = ptx::load_shared_int4(address), b = ptx::load_shared_int4(address + 16);
  const int4 c = ptx::load_shared_int4(address + 32), d = ptx::load_shared_int4(address + 48);
  const int4 e = ptx::load_shared_int4(address + 64);
  return {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w, c.x, c.y, c.z, c.w, d.x, d.y, d.z, d.w, e.x, e.y};
}
__device__ __forceinline__ void write_key_tile(std::uint32_t address, const KeyTile& t) {
  ptx::store_shared(address, make_int4(t.sequence, t.kv_head, t.key0, t.tiles));
  ptx::store_shared(address + 16, make_int4(t.end, t.begin, t.unmasked_first, t.unmasked_last));
  ptx::store_shared(address + 32, make_int4(t.q_begin, t.q_len, t.kv_begin, t.kv_len));
  ptx::store_shared(address + 48, make_int4(t.kv_visible, t.start, t.first_row, t.keys));
  ptx::store_shared(address + 64, make_int4(t.rounds_first, t.rounds_last, 0, 0));
}

// The next query tile of a walk, with wrap-around.
__device__ __forceinline__ int next_query_tile(int tile, int end, int begin) {
  if (tile == end) return begin;
  return tile < end ? tile + 1 : tile - 1;
}

// Visits the query tiles of a key tile from its start on, once for every head of the group.
class QueryWalk {
 public:
  QueryWalk() = default;
  __device__ __forceinline__ explicit QueryWalk(const KeyTile& t)
      : end_(t.end), begin_(t.begin), start_(t.start), tile_(t.start) {}
  __device__ __forceinline__ int tile() const { return tile_; }
  // True: the next tile belongs to the next head.
  __device__ __forceinline__ bool advance() {
    tile_ = next_query_tile(tile_, end_, begin_);
    return tile_ == start_;
  }

 private:
  int end_, begin_, start_, tile_;
};

}  // namespace rootdk::cuda::hopper
