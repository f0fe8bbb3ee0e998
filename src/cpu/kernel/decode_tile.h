#pragma once

// One tile of cached keys and values in memory, and the fetching of the next. Included once per target: internal
// linkage.

#include "cpu/decode_table.h"
#include "cpu/simd/common.h"

namespace rootdk::cpu {
namespace {

constexpr int kTileGroups = kTileKeys / kGroupKeys;

// Where the groups of a tile lie.
template <class Element>
struct Tile {
  int64_t begin = 0;
  int keys[kTileGroups] = {};  // 0: nobody sees the group
  const Element* k[kTileGroups] = {};
  const Element* v[kTileGroups] = {};
  const float* k_scales[kTileGroups] = {};
  const float* v_scales[kTileGroups] = {};
  int total = 0;
};

// Asks for memory that the next tile will read. Into L2: what is needed sooner would not fit into L1.
inline void prefetch(const void* from, int bytes) {
  for (int offset = 0; offset < bytes; offset += 64) {
    __builtin_prefetch(static_cast<const char*>(from) + offset, 0, 2);
  }
}

// The keys of one group, and of the same group of the next tile, which are fetched meanwhile; null: nothing to fetch.
template <class Element>
struct GroupKeys {
  const Element* first;
  const Element* ahead;
  int keys;

  void fetch(int t, int rows, int head_dim) const {
    if (ahead) prefetch(ahead + t * head_dim, rows * head_dim * static_cast<int>(sizeof(Element)));
  }
};

// Values are added to two rows of a block at a time.
constexpr int kPassRows = 2;

// Where a block of the output begins: at row `row` of the row block that begins at first_row, in a column of value_dim.
struct BlockOrigin {
  int first_row, row, column;
};

// What a product's add_values reads: weights, factors, and the rows of the values in order.
template <class Element, class Weight>
struct TileValues {
  const Tile<Element>& tile;
  const Tile<Element>& ahead;  // the next tile, which is fetched meanwhile; without keys: nothing to fetch
  const Weight* weights;       // [planes, kRowBlock, kTileKeys]
  const float* factors;        // [kRowBlock]: on what was summed before
  const float* restores;       // [kRowBlock]: on the products
  int value_dim;

  // body(column, row, next row), where rows point to column at.column and kColumns of each are read. A last key without
  // a partner is its own, with a weight of zero.
  template <int kColumns, class Body>
  void for_each_pair(BlockOrigin at, Body body) const {
    for (int g = 0; g < kTileGroups; ++g) {
      const Element* row = tile.v[g] + at.column;
      // The first pass over the values fetches; rows of several blocks are fetched in the order of the blocks.
      const Element* fetched = at.row == 0 && ahead.keys[g] > 0 ? ahead.v[g] + at.column * kGroupKeys : nullptr;
      const int keys = tile.keys[g], column = g * kGroupKeys;
      int t = 0;
      for (; t + 2 <= keys; t += 2, row += 2 * value_dim) {
        if (fetched) prefetch(fetched + t * kColumns, 2 * kColumns * static_cast<int>(sizeof(Element)));
        body(column + t, row, row + value_dim);
      }
      if (t < keys) body(column + t, row, row);
    }
  }
};

}  // namespace
}  // namespace rootdk::cpu
