#pragma once

// One tile of cached keys and values in memory, and the fetching of the next. Included once per target: internal
// linkage.

#include "cpu/decode_table.h"
#include "cpu/simd/common.h"

namespace rootdk::cpu {
namespace {

// body(0), body(1), ... body(kCount - 1). For arrays of vectors that are to stay in registers: GCC 12 unrolls a loop
// that is in no other loop too late for that, and keeps the array in memory wherever else it is used.
template <int kCount, int kFirst = 0, class Body>
inline __attribute__((always_inline)) void unrolled(Body body) {
  if constexpr (kFirst < kCount) {
    body(kFirst);
    unrolled<kCount, kFirst + 1>(body);
  }
}

// How the values of a tile are added to the four rows of a block. Where elements go into the products as they are,
// memory is the limit: two rows at a time read whole rows of values in order, which is what memory does best, and the
// other two find a small tile in L1. Where elements have to be widened, that is done once for all four rows, in blocks
// of columns.
struct InOrder {
  static constexpr int kPassRows = kRowBlock / 2;
  static constexpr int kTileKeys = 32;
};
struct WidenOnce {
  static constexpr int kPassRows = kRowBlock;
  static constexpr int kTileKeys = 64;
};
// Bytes are so short that a tile of many keys fits into L1, and arithmetic is the limit: what is done once a tile is
// done seldom.
struct ManyKeys {
  static constexpr int kPassRows = kRowBlock / 2;
  static constexpr int kTileKeys = 128;
};

// Where the groups of a tile lie.
template <class Lanes>
struct Tile {
  using Element = typename Lanes::Element;
  static constexpr int kKeys = Lanes::kTileKeys;
  static constexpr int kGroups = kKeys / kGroupKeys;

  int64_t begin = 0;
  int keys[kGroups] = {};  // 0: no row sees the group
  const Element* k[kGroups] = {};
  const Element* v[kGroups] = {};
  const float* k_scales[kGroups] = {};
  const float* v_scales[kGroups] = {};
  ptrdiff_t v_stride = 0;  // from one row of v to the next
  int total = 0;
};

constexpr int kLine = 64;  // bytes that memory moves at once

// Asks for memory that the next tile will read. Into L2: what is needed sooner would not fit into L1.
inline void prefetch_line(const void* from) { __builtin_prefetch(from, 0, 2); }

// The keys of one group, and those which are fetched meanwhile: of the same group of the next tile, or the same ones.
template <class Element>
struct GroupKeys {
  const Element* first;
  const Element* ahead;
  int keys;
  ptrdiff_t stride;  // from one key to the next
};

// The part of a row of values that one pass reads.
alignas(64) constexpr unsigned char kZeroRow[512] = {};

// One pass over the values of a tile: some rows of a row block, some columns.
struct ValuePass {
  int row;      // of the row block
  int column;   // of value_dim
  int fetched;  // bytes of a pair of keys that earlier passes have fetched
};

// What a product's add_values reads: weights, factors, and the rows of the values in order.
template <class Lanes, class Weight>
struct TileValues {
  using Element = typename Lanes::Element;

  const Tile<Lanes>& tile;
  const Tile<Lanes>& ahead;  // the next tile, which is fetched meanwhile; without keys: nothing to fetch
  const Weight* weights;     // [planes, kRowBlock, kTileKeys]
  const float* factors;      // [kRowBlock]: on what was summed before
  const float* restores;     // [kRowBlock]: on the products
  int value_dim;

  // body(key, rows) for kTogether keys at a time, where rows point to the pass's column. Past the last key
  // rows are zero, and so are their weights. A pass fetches its share of the next tile: kShare bytes for each
  // pair of keys. kWhole: the tile has all of its keys.
  template <int kTogether, int kShare, bool kWhole = false, class Body>
  void for_each_key_group(const ValuePass& pass, Body body) const {
    constexpr int kFetched = kTogether / 2 * kShare;
    for (int g = 0; g < Tile<Lanes>::kGroups; ++g) {
      const Element* row = tile.v[g] + pass.column;
      const char* fetched = fetch_from<kShare>(pass, g);
      const int keys = kWhole ? kGroupKeys : tile.keys[g], first = g * kGroupKeys;
      const ptrdiff_t stride = tile.v_stride;
      for (int t = 0; t < keys; t += kTogether, row += kTogether * stride, fetched += kFetched) {
        for (int offset = 0; offset < kFetched; offset += kLine) prefetch_line(fetched + offset);
        const Element* rows[kTogether];
        for (int i = 0; i < kTogether; ++i) {
          rows[i] = kWhole || t + i < keys ? row + i * stride : reinterpret_cast<const Element*>(kZeroRow);
        }
        body(first + t, rows);
      }
    }
  }

  // What a pass of so many rows over a block of columns fetches.
  static constexpr int share(int rows, int columns) {
    return 2 * columns * static_cast<int>(sizeof(Element)) * rows / kRowBlock;
  }

 private:
  // What a pass fetches while it reads group g. Whatever rows and columns the passes read, together they fetch the next
  // tile from its first line to its last, which was faster than any other order (docs/logbook/cpu-decode.md).
  template <int kShare>
  const char* fetch_from(const ValuePass& pass, int g) const {
    constexpr int kGroups = Tile<Lanes>::kGroups;
    const int group_bytes = value_dim * static_cast<int>(sizeof(Element)) * kGroupKeys;
    const int before = (pass.fetched * kGroups + kShare * g) * (kGroupKeys / 2);
    const int group = smaller(before / group_bytes, kGroups - 1);
    const Element* values = ahead.keys[group] > 0 ? ahead.v[group] : tile.v[group];
    return reinterpret_cast<const char*>(values) + (before - group * group_bytes);
  }
};

// Calls wide(pass) for blocks of kColumns of value_dim and narrow(pass, columns) for the rest in blocks of
// kNarrowColumns, kRows rows of a row block at a time. Both return what they have fetched.
template <int kRows, int kColumns, int kNarrowColumns, class Wide, class Narrow>
inline void for_each_pass(int value_dim, Wide wide, Narrow narrow) {
  ValuePass pass{};
  while (pass.column < value_dim) {
    const bool whole = pass.column + kColumns <= value_dim;
    for (pass.row = 0; pass.row < kRowBlock; pass.row += kRows) {
      if (whole) {
        pass.fetched += wide(pass);
      } else {
        pass.fetched += narrow(pass, smaller(kNarrowColumns, value_dim - pass.column));
      }
    }
    pass.column += whole ? kColumns : kNarrowColumns;
  }
}

}  // namespace
}  // namespace rootdk::cpu
