#pragma once

// Products of a prompt over int8 as it is stored, by products of bytes (Bytes in simd/bytes_*.h): see decode_prompt.h
// and decode_bytes.h. Sums of integers are exact, so that their order is free. Included once per target: internal
// linkage.

#include "cpu/kernel/decode_prompt.h"

namespace rootdk::cpu {
namespace {

constexpr int kBytePlanes = 2;

// Where the sum of the low plane begins: less what the offset of the values adds to it. `row` has the weights of
// kTileKeys keys, zero for those that a row does not see.
template <int kTileKeys, class Target = Bytes>
inline Bytes::Words start_of_values(const uint8_t* row, ptrdiff_t plane_stride) {
  if constexpr (Target::kOffsetsValues) {
    constexpr uint32_t kOffset = 128;
    const uint32_t sum = 256 * Target::total(row, kTileKeys) + Target::total(row + plane_stride, kTileKeys);
    return Target::set1(static_cast<int32_t>(0 - kOffset * sum));
  }
  return Target::set1(0);
}

struct ByteLanes : ManyKeys {
  using Element = int8_t;
};

struct BytePrompt {
  using Lanes = ByteLanes;
  using Lane = int8_t;
  using ValueLane = int8_t;
  using Words = Bytes::Words;
  using KeyTile = Tile<Lanes>;
  static constexpr int kTileKeys = KeyTile::kKeys;
  static constexpr int kUnit = 4;                   // bytes of a lane
  static constexpr int kColumns = 2 * kWidth;       // keys that are scored together, and columns of the output
  static constexpr int kUnitBytes = Bytes::kLanes;  // of a unit of kWidth keys or columns
  static constexpr int kDepth = kTileKeys / kUnit;

  static int units(int head_dim) { return round_up(head_dim, Bytes::kLanes) / kUnit; }
  // Keys: [kTileKeys / kWidth, units, kWidth] units.
  static size_t key_bytes(int head_dim) {
    return static_cast<size_t>(kTileKeys) * static_cast<size_t>(round_up(head_dim, Bytes::kLanes));
  }
  // Values: [value_dim / kWidth, kDepth, kWidth] units, each of four keys.
  static size_t value_bytes(int value_dim) {
    return static_cast<size_t>(kTileKeys) * static_cast<size_t>(round_up(value_dim, Bytes::kLanes));
  }

  static size_t query_bytes(int head_dim) {
    return static_cast<size_t>(kBytePlanes) * static_cast<size_t>(round_up(head_dim, Bytes::kLanes));
  }
  // Queries: [units, planes].
  static void pack_query(const int8_t* row, ptrdiff_t plane_stride, int, int head_dim, int8_t* packed) {
    for (int n = 0; n < units(head_dim) * kBytePlanes; ++n) {
      __builtin_memcpy(packed + n * kUnit, row + n % kBytePlanes * plane_stride + n / kBytePlanes * kUnit, kUnit);
    }
  }

  static void pack_keys(const KeyTile& tile, ptrdiff_t stride, int head_dim, int8_t* packed) {
    for (int t = 0; t < kTileKeys; t += kWidth, packed += units(head_dim) * kUnitBytes) {
      const int group = t / kGroupKeys, first = t % kGroupKeys, keys = tile.keys[group] - first;
      for (int d = 0; d < head_dim; d += Bytes::kLanes) {
        Vec square[kWidth];
        for (int i = 0; i < kWidth; ++i) {
          const auto bytes =
              i < keys ? Bytes::load_first(tile.k[group] + (first + i) * stride + d, head_dim - d) : Bytes::zero();
          square[i] = Bytes::as_floats(Bytes::keys(bytes));
        }
        Simd::transpose(square);
        for (int i = 0; i < kWidth; ++i) {
          Simd::store(reinterpret_cast<float*>(packed + (d / kUnit + i) * kUnitBytes), square[i]);
        }
      }
    }
  }

  static void pack_values(const KeyTile& tile, int value_dim, int8_t* packed) {
    for (int t = 0; t < kTileKeys; t += kUnit) {
      const int group = t / kGroupKeys, first = t % kGroupKeys;
      for (int d = 0; d < value_dim; d += Bytes::kLanes) {
        Bytes::Vector x[4];
        for (int i = 0; i < 4; ++i) {
          x[i] = first + i < tile.keys[group]
                     ? Bytes::load_first(tile.v[group] + (first + i) * tile.v_stride + d, value_dim - d)
                     : Bytes::zero();
        }
        Bytes::interleave(x);
        Bytes::order_columns(x);
        for (int i = 0; i < 4; ++i) {
          Bytes::store(packed + ((d / kWidth + i) * kDepth + t / kUnit) * kUnitBytes, Bytes::values(x[i]));
        }
      }
    }
  }

  static void score(const PromptQueries<int8_t>& q, const int8_t* packed, int head_dim, int keys, float* scores) {
    const int count = units(head_dim);
    for (int t = 0; t < keys; t += kColumns, packed += 2 * count * kUnitBytes) {
      score_columns(q, packed, count, scores + t);
    }
  }

  static void add_values(const PromptWeights<uint8_t>& weights, const int8_t* packed, int value_dim, int keys) {
    const int depth = (keys + kUnit - 1) / kUnit;
    Words starts[kPromptRows];
    for (int i = 0; i < kPromptRows; ++i) {
      starts[i] = start_of_values<kTileKeys>(weights.weights + i * kTileKeys, kPromptRows * kTileKeys);
    }
    for (int d = 0; d < value_dim; d += kColumns, packed += 2 * kDepth * kUnitBytes) {
      add_columns(weights, starts, packed, depth, d);
    }
  }

 private:
  using Sums = Words[kBytePlanes][kPromptRows][2];

  static __attribute__((always_inline)) void clear(Sums& sums) {
    unrolled<kBytePlanes * kPromptRows * 2>([&](int i) __attribute__((always_inline)) {
      sums[i / (kPromptRows * 2)][i / 2 % kPromptRows][i % 2] = Bytes::set1(0);
    });
  }

  __attribute__((noinline)) static void score_columns(const PromptQueries<int8_t>& q, const int8_t* packed, int count,
                                                      float* scores) {
    Sums sums;
    clear(sums);
    for (int unit = 0; unit < count; ++unit, packed += kUnitBytes) {
      const Bytes::Vector keys[2] = {Bytes::load(packed), Bytes::load(packed + count * kUnitBytes)};
      unrolled<kBytePlanes * kPromptRows>([&](int n) __attribute__((always_inline)) {
        const int plane = n / kPromptRows, i = n % kPromptRows;
        const auto x = Bytes::spread(q.rows[i] + (unit * kBytePlanes + plane) * kUnit);
        for (int v = 0; v < 2; ++v) sums[plane][i][v] = Bytes::add_scores(sums[plane][i][v], keys[v], x);
      });
    }
    unrolled<kPromptRows>([&](int i) __attribute__((always_inline)) {
      for (int v = 0; v < 2; ++v) {
        Words all = Bytes::join_planes(sums[0][i][v], sums[1][i][v]);
        if constexpr (Bytes::kOffsetsKeys) all = Bytes::sub(all, Bytes::set1(q.offsets[i]));
        Simd::store(scores + i * kTileKeys + v * kWidth, Bytes::to_float(all));
      }
    });
  }

  __attribute__((noinline)) static void add_columns(const PromptWeights<uint8_t>& weights,
                                                    const Words (&starts)[kPromptRows], const int8_t* packed, int depth,
                                                    int d) {
    Sums sums;
    clear(sums);
    if constexpr (Bytes::kOffsetsValues) {
      unrolled<kPromptRows * 2>([&](int n) __attribute__((always_inline)) { sums[1][n / 2][n % 2] = starts[n / 2]; });
    }
    const uint8_t* left = weights.weights;
    for (int z = 0; z < depth; ++z, packed += kUnitBytes, left += kUnit) {
      const Bytes::Vector values[2] = {Bytes::load(packed), Bytes::load(packed + kDepth * kUnitBytes)};
      unrolled<kBytePlanes * kPromptRows>([&](int n) __attribute__((always_inline)) {
        const int plane = n / kPromptRows, i = n % kPromptRows;
        const auto p = Bytes::spread(left + n * kTileKeys);
        for (int v = 0; v < 2; ++v) sums[plane][i][v] = Bytes::add_values(sums[plane][i][v], p, values[v]);
      });
    }
    unrolled<kPromptRows>([&](int i) __attribute__((always_inline)) {
      for (int v = 0; v < 2; ++v) {
        float* out = weights.out[i] + d + v * kWidth;
        const Vec before = Simd::mul(Simd::load(out), Simd::set1(weights.factors[i]));
        const Vec added = Bytes::to_float(Bytes::join_planes(sums[0][i][v], sums[1][i][v]));
        Simd::store(out, Simd::fma(added, Simd::set1(weights.restores[i]), before));
      }
    });
  }
};

}  // namespace
}  // namespace rootdk::cpu
