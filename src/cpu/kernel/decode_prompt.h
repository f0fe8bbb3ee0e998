#pragma once

// Products of a prompt over one tile of a cache: many query rows, and bit by bit the sums that the products of a few
// rows have. Those sum a score in chains, one for each lane along head_dim, and join the chains in a tree. Here keys
// are transposed once for all rows, so that a lane belongs to one key; the chains are computed one after another, in
// the order of the tree, and every sum has the same terms in the same order. Included once per target: internal
// linkage.

#include "cpu/kernel/decode_tile.h"

namespace rootdk::cpu {
namespace {

// How many rows go through registers together, and from how many on transposing a tile pays.
constexpr int kPromptRows = Simd::kRows;
constexpr int kFewRows = 2 * kRowBlock;
// Keys that a group of rows takes at once, as far as it attends to whole tiles of them.
constexpr int kPromptKeys = 128;

// The packed queries of kPromptRows rows.
template <class Lane>
struct PromptQueries {
  const Lane* rows[kPromptRows];
  ptrdiff_t plane_stride;        // from one plane of a row to the next, where they are not packed once more
  int32_t offsets[kPromptRows];  // of products of bytes
  int planes;
};

// The weights of kPromptRows rows, [planes, kPromptRows, keys of a tile], and where their sums go.
template <class Weight>
struct PromptWeights {
  Weight* weights;
  float* out[kPromptRows];
  float factors[kPromptRows];   // on what was summed before
  float restores[kPromptRows];  // on the products
  int planes;
  bool rescales;  // some factor is not 1
};

// Which chains a score has. A unit is what a 32-bit lane multiplies: one float or a pair. Chain c of kCount has, of
// every kCount * kRun units of a key, those from c * kRun on. Chains whose numbers differ by kDistances[0] are joined
// first, then by kDistances[1] and so on.
template <int kRunUnits, const auto& kDistances>
struct Chains {
  static constexpr int kRun = kRunUnits;
  static constexpr int kLevels = sizeof(kDistances) / sizeof(int);
  static constexpr int kCount = 1 << kLevels;

  // Chains are computed in the order in which they are joined, neighbours first.
  static constexpr int chain(int place) {
    int result = 0;
    for (int level = 0; level < kLevels; ++level) result += (place >> level & 1) * kDistances[level];
    return result;
  }
  struct Places {
    int of_chain[kCount] = {};
    constexpr Places() {
      for (int place = 0; place < kCount; ++place) of_chain[chain(place)] = place;
    }
  };
  static constexpr Places kPlaces = {};
};

// Units says how a target packs and multiplies: Element, Lane, kUnit, Order (Chains), kTileKeys, load, store_rows,
// spread, dot.
template <class Units>
struct PromptProduct {
  using Element = typename Units::Element;
  using Lane = typename Units::Lane;
  using ValueLane = Lane;
  using Order = typename Units::Order;
  using KeyTile = Tile<typename Units::Lanes>;
  static constexpr int kTileKeys = KeyTile::kKeys;
  static constexpr int kUnit = Units::kUnit;
  static constexpr int kBlock = Order::kCount * Order::kRun;  // units
  static constexpr int kColumns = 2 * kWidth;                 // keys that are scored together
  static constexpr int kTogether = Simd::kPanelVectors;       // chains at once: as there are registers
  static constexpr int kScoreRows = kPromptRows / 2;
  // Vectors of a row of the output that are summed together. Wide ones leave registers for the output itself.
  static constexpr int kValueVectors = kWidth < 16 ? Simd::kPanelVectors : Simd::kPanelVectors / 2;
  static constexpr int kPanel = kValueVectors * kWidth;

  static int blocks(int head_dim) { return (head_dim + kBlock * kUnit - 1) / (kBlock * kUnit); }
  // Keys: [kTileKeys / kColumns, units in the order of place_of, kColumns].
  static size_t key_bytes(int head_dim) {
    return static_cast<size_t>(kTileKeys) * static_cast<size_t>(blocks(head_dim) * kBlock) * sizeof(float);
  }
  // Values: [panels of value_dim, kTileKeys / kUnit, kPanel] units.
  static size_t value_bytes(int value_dim) {
    return static_cast<size_t>(kTileKeys) * static_cast<size_t>(round_up(value_dim, kPanel)) * sizeof(Lane);
  }

  static void pack_keys(const KeyTile& tile, ptrdiff_t stride, int head_dim, Lane* packed) {
    for (int t = 0; t < kTileKeys; t += kWidth) {
      const int group = t / kGroupKeys, first = t % kGroupKeys;
      const int keys = larger(0, smaller(kWidth, tile.keys[group] - first));
      pack_columns(tile.k[group] + first * stride, stride, keys, head_dim,
                   packed + (t / kColumns * blocks(head_dim) * kBlock * kColumns + t % kColumns) * kUnit);
    }
  }

  static void pack_values(const KeyTile& tile, int value_dim, Lane* packed) {
    for (int t = 0; t < kTileKeys; t += kUnit) {
      const int group = t / kGroupKeys, first = t % kGroupKeys;
      const Element* rows[kUnit];
      for (int i = 0; i < kUnit; ++i) {
        rows[i] = first + i < tile.keys[group] ? tile.v[group] + (first + i) * tile.v_stride : nullptr;
      }
      Units::template store_rows<kPanel>(rows, value_dim, packed + t * kPanel,
                                         static_cast<ptrdiff_t>(kTileKeys) * kPanel);
    }
  }

  // scores[r * kTileKeys + t] of the first `keys` keys of the tile, and anything for t beyond them.
  static void score(const PromptQueries<Lane>& q, const Lane* packed, int head_dim, int keys, float* scores) {
    for (int t = 0; t < keys; t += kColumns, packed += blocks(head_dim) * kBlock * kColumns * kUnit) {
      for (int i = 0; i < kPromptRows; i += kScoreRows) {
        alignas(64) float waiting[Order::kLevels + 1][kScoreRows][kColumns];  // what a sum of each level will join
        float* to = scores + i * kTileKeys + t;
        q.planes == 1 ? sum_chains<1, 0>(q, i, packed, blocks(head_dim), waiting, to)
                      : sum_chains<Units::kMaxPlanes, 0>(q, i, packed, blocks(head_dim), waiting, to);
      }
    }
  }

  // out = out * factor + weights v over the first `keys` keys of the tile, for each of `count` tiles in order.
  static void add_values(const PromptWeights<Lane>* tiles, int count, const Lane* packed, int value_dim, int keys) {
    const int depth = (keys + kUnit - 1) / kUnit;
    for (int d = 0; d < value_dim; d += kPanel, packed += static_cast<ptrdiff_t>(kTileKeys) * kPanel) {
      const Columns columns{packed, static_cast<ptrdiff_t>(value_bytes(value_dim) / sizeof(Lane)), depth, d};
      tiles[0].planes == 1 ? add_columns<1>(tiles, count, columns)
                           : add_columns<Units::kMaxPlanes>(tiles, count, columns);
    }
  }

 private:
  static int chain_length(int head_dim) { return blocks(head_dim) * Order::kRun; }

  // Where unit `unit` of a key goes: [places / kTogether, chain_length, kTogether].
  static int place_of(int unit, int length) {
    const int block = unit / kBlock, in_block = unit % kBlock;
    const int place = Order::kPlaces.of_chain[in_block / Order::kRun];
    const int in_chain = block * Order::kRun + in_block % Order::kRun;
    return (place / kTogether * length + in_chain) * kTogether + place % kTogether;
  }

  // kWidth keys side by side, kColumns units from one unit of a key to the next.
  static void pack_columns(const Element* first, ptrdiff_t stride, int keys, int head_dim, Lane* packed) {
    const int units = blocks(head_dim) * kBlock, length = chain_length(head_dim);
    for (int unit = 0; unit < units; unit += kWidth) {
      Vec square[kWidth];
      for (int i = 0; i < kWidth; ++i) {
        square[i] = i < keys ? Units::load(first + i * stride + unit * kUnit, head_dim - unit * kUnit) : Simd::zero();
      }
      Simd::transpose(square);
      for (int i = 0; i < smaller(kWidth, units - unit); ++i) {
        Simd::store(reinterpret_cast<float*>(packed + place_of(unit + i, length) * kColumns * kUnit), square[i]);
      }
    }
  }

  // kScoreRows rows by kColumns keys: kTogether chains from kPlace on, then the others.
  template <int kPlanes, int kPlace>
  __attribute__((noinline)) static void sum_chains(const PromptQueries<Lane>& q, int first_row, const Lane* panel,
                                                   int blocks, float (*waiting)[kScoreRows][kColumns], float* scores) {
    Vec sums[kTogether][kScoreRows][2];
    unrolled<kTogether * kScoreRows * 2>([&](int n) __attribute__((always_inline)) {
      sums[n / 2 / kScoreRows][n / 2 % kScoreRows][n % 2] = Simd::zero();
    });
    const Lane* rows[kScoreRows];
    unrolled<kScoreRows>([&](int i) __attribute__((always_inline)) { rows[i] = q.rows[first_row + i]; });
    const ptrdiff_t plane_stride = q.plane_stride;
    for (ptrdiff_t n = 0; n < blocks * Order::kRun; ++n, panel += kTogether * kColumns * kUnit) {
      const ptrdiff_t unit = n / Order::kRun * kBlock + n % Order::kRun;
#pragma GCC unroll 8
      for (int c = 0; c < kTogether; ++c) {
        const int chain = Order::chain(kPlace + c) * Order::kRun;
        const auto first = Units::load_lanes(panel + c * kColumns * kUnit);
        const auto second = Units::load_lanes(panel + (c * kColumns + kWidth) * kUnit);
#pragma GCC unroll 8
        for (int plane = 0; plane < kPlanes; ++plane) {
#pragma GCC unroll 8
          for (int i = 0; i < kScoreRows; ++i) {
            const auto x = Units::spread(rows[i] + (unit + chain) * kUnit + plane * plane_stride);
            sums[c][i][0] = Units::dot(sums[c][i][0], x, first);
            sums[c][i][1] = Units::dot(sums[c][i][1], x, second);
          }
        }
      }
    }
    join_chains<kPlace>(sums, waiting, scores);
    if constexpr (kPlace + kTogether < Order::kCount) {
      sum_chains<kPlanes, kPlace + kTogether>(q, first_row, panel, blocks, waiting, scores);
    }
  }

  // The chains from kPlace on become one sum, which joins what waits for it, waits itself, or is the score.
  template <int kPlace>
  __attribute__((always_inline)) static void join_chains(Vec (&sums)[kTogether][kScoreRows][2],
                                                         float (*waiting)[kScoreRows][kColumns], float* scores) {
    join_neighbours<1>(sums);
    join_waiting<kPlace, log2_of(kTogether)>(sums[0], waiting, scores);
  }

  // sums[0] becomes the sum of all.
  template <int kDistance>
  __attribute__((always_inline)) static void join_neighbours(Vec (&sums)[kTogether][kScoreRows][2]) {
    if constexpr (kDistance < kTogether) {
      unrolled<kTogether / 2 / kDistance * kScoreRows * 2>([&](int n) __attribute__((always_inline)) {
        const int c = n / 2 / kScoreRows * 2 * kDistance, i = n / 2 % kScoreRows;
        sums[c][i][n % 2] = Simd::add(sums[c][i][n % 2], sums[c + kDistance][i][n % 2]);
      });
      join_neighbours<2 * kDistance>(sums);
    }
  }

  template <int kPlace, int kLevel>
  __attribute__((always_inline)) static void join_waiting(Vec (&sums)[kScoreRows][2],
                                                          float (*waiting)[kScoreRows][kColumns], float* scores) {
    if constexpr (kPlace >> kLevel & 1) {
      unrolled<kScoreRows * 2>([&](int n) __attribute__((always_inline)) {
        sums[n / 2][n % 2] = Simd::add(Simd::load(waiting[kLevel][n / 2] + n % 2 * kWidth), sums[n / 2][n % 2]);
      });
      join_waiting<kPlace, kLevel + 1>(sums, waiting, scores);
    } else {
      constexpr bool kLast = kPlace + kTogether == Order::kCount;
      constexpr int kStride = kLast ? kTileKeys : kColumns;
      float* to = kLast ? scores : waiting[kLevel][0];
      unrolled<kScoreRows * 2>([&](int n) __attribute__((always_inline)) {
        Simd::store(to + n / 2 * kStride + n % 2 * kWidth, sums[n / 2][n % 2]);
      });
    }
  }

  static constexpr int log2_of(int x) { return x > 1 ? 1 + log2_of(x / 2) : 0; }

  // A panel of values.
  struct Columns {
    const Lane* packed;
    ptrdiff_t tile_stride;  // from one tile to the next
    int depth;              // units of a tile
    int first;              // column of the output
  };

  using Output = Vec[kPromptRows][kValueVectors];

  // body(row, vector) for all of an Output.
  template <class Body>
  __attribute__((always_inline)) static void for_output(Body body) {
    unrolled<kPromptRows * kValueVectors>([&](int n) __attribute__((always_inline)) {
      body(n / kValueVectors, n % kValueVectors);
    });
  }

  // The output stays in registers from tile to tile.
  template <int kPlanes>
  __attribute__((noinline)) static void add_columns(const PromptWeights<Lane>* tiles, int count,
                                                    const Columns& columns) {
    Output out;
    for_output([&](int i, int j) __attribute__((always_inline)) {
      out[i][j] = Simd::load(tiles[0].out[i] + columns.first + j * kWidth);
    });
    for (int t = 0; t < count; ++t) {
      Output sums;
      multiply<kPlanes>(tiles[t].weights, columns.packed + t * columns.tile_stride, columns.depth, sums);
      // A factor of 1 changes no bit, and additions run beside the products of the next tile.
      if (tiles[t].rescales) {
        for_output([&](int i, int j) __attribute__((always_inline)) {
          out[i][j] = Simd::fma(out[i][j], Simd::set1(tiles[t].factors[i]), sums[i][j]);
        });
      } else {
        for_output([&](int i, int j) __attribute__((always_inline)) { out[i][j] = Simd::add(out[i][j], sums[i][j]); });
      }
    }
    for_output([&](int i, int j) __attribute__((always_inline)) {
      Simd::store(tiles[0].out[i] + columns.first + j * kWidth, out[i][j]);
    });
  }

  // sums = weights v over one tile.
  template <int kPlanes>
  __attribute__((always_inline)) static void multiply(const Lane* left, const Lane* packed, int depth, Output& sums) {
    for_output([&](int i, int j) __attribute__((always_inline)) { sums[i][j] = Simd::zero(); });
    for (int z = 0; z < depth; ++z, packed += kPanel * kUnit, left += kUnit) {
      decltype(Units::load_lanes(packed)) right[kValueVectors];
#pragma GCC unroll 8
      for (int j = 0; j < kValueVectors; ++j) right[j] = Units::load_lanes(packed + j * kWidth * kUnit);
#pragma GCC unroll 8
      for (int plane = 0; plane < kPlanes; ++plane) {
#pragma GCC unroll 8
        for (int i = 0; i < kPromptRows; ++i) {
          const auto p = Units::spread(left + (plane * kPromptRows + i) * kTileKeys);
#pragma GCC unroll 8
          for (int j = 0; j < kValueVectors; ++j) sums[i][j] = Units::dot(sums[i][j], p, right[j]);
        }
      }
    }
  }
};

}  // namespace
}  // namespace rootdk::cpu
