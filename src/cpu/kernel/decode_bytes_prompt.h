#pragma once

// Products of a prompt over int8 as it is stored, with vpdpbusd: see decode_prompt.h and decode_bytes.h. Sums of
// integers are exact, so that their order is free. Included once per target: internal linkage.

#include <immintrin.h>

#include "cpu/kernel/decode_avx512.h"

namespace rootdk::cpu {
namespace {

constexpr int kBytePlanes = 2;

// sum + products of bytes without sign and with. Not the intrinsic: GCC 12 copies its sums from register to register,
// and loads a factor anew for each product that it goes into, where the processor has one load for each product.
inline __m512i add_products(__m512i sum, __m512i without_sign, __m512i with_sign) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(without_sign), "v"(with_sign));
  return sum;
}

inline __m512i join_planes(__m512i high, __m512i low) { return _mm512_add_epi32(_mm512_slli_epi32(high, 8), low); }

// Bytes of four vectors side by side: vector i has, in each quarter, bytes 4 i to 4 i + 3 of the quarter.
inline void interleave_bytes(__m512i (&x)[4]) {
  const __m512i a = _mm512_unpacklo_epi8(x[0], x[1]), b = _mm512_unpackhi_epi8(x[0], x[1]);
  const __m512i c = _mm512_unpacklo_epi8(x[2], x[3]), d = _mm512_unpackhi_epi8(x[2], x[3]);
  x[0] = _mm512_unpacklo_epi16(a, c);
  x[1] = _mm512_unpackhi_epi16(a, c);
  x[2] = _mm512_unpacklo_epi16(b, d);
  x[3] = _mm512_unpackhi_epi16(b, d);
}

struct ByteLanes : ManyKeys {
  using Element = int8_t;
};

struct BytePrompt {
  using Lanes = ByteLanes;
  using Lane = int8_t;
  using ValueLane = int8_t;
  using KeyTile = Tile<Lanes>;
  static constexpr int kTileKeys = KeyTile::kKeys;
  static constexpr int kUnit = 4;                // bytes of a lane
  static constexpr int kColumns = 2 * kWidth;    // keys that are scored together, and columns of the output
  static constexpr int kUnitBytes = kByteLanes;  // of a unit of kWidth keys or columns
  static constexpr int kDepth = kTileKeys / kUnit;

  static int units(int head_dim) { return round_up(head_dim, kByteLanes) / kUnit; }
  // Keys: [kTileKeys / kWidth, units, kWidth] units.
  static size_t key_bytes(int head_dim) {
    return static_cast<size_t>(kTileKeys) * static_cast<size_t>(round_up(head_dim, kByteLanes));
  }
  // Values: [value_dim / kWidth, kDepth, kWidth] units, each of four keys.
  static size_t value_bytes(int value_dim) {
    return static_cast<size_t>(kTileKeys) * static_cast<size_t>(round_up(value_dim, kByteLanes));
  }

  static size_t query_bytes(int head_dim) {
    return static_cast<size_t>(kBytePlanes) * static_cast<size_t>(round_up(head_dim, kByteLanes));
  }
  // Queries: [units, planes].
  static void pack_query(const int8_t* row, ptrdiff_t plane_stride, int, int head_dim, int8_t* packed) {
    for (int n = 0; n < units(head_dim) * kBytePlanes; ++n) {
      __builtin_memcpy(packed + n * kUnit, row + n % kBytePlanes * plane_stride + n / kBytePlanes * kUnit, kUnit);
    }
  }

  // Keys lose their sign by an offset of 128.
  static void pack_keys(const KeyTile& tile, ptrdiff_t stride, int head_dim, int8_t* packed) {
    for (int t = 0; t < kTileKeys; t += kWidth, packed += units(head_dim) * kUnitBytes) {
      const int keys = tile.keys[t / kGroupKeys];
      for (int d = 0; d < head_dim; d += kByteLanes) {
        Vec square[kWidth];
        for (int i = 0; i < kWidth; ++i) {
          const __m512i bytes =
              i < keys ? _mm512_maskz_loadu_epi8(first_bytes(head_dim - d), tile.k[t / kGroupKeys] + i * stride + d)
                       : _mm512_setzero_si512();
          square[i] = _mm512_castsi512_ps(_mm512_xor_si512(bytes, _mm512_set1_epi8(-128)));
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
      for (int d = 0; d < value_dim; d += kByteLanes) {
        __m512i x[4];
        for (int i = 0; i < 4; ++i) {
          x[i] = first + i < tile.keys[group] ? _mm512_maskz_loadu_epi8(first_bytes(value_dim - d),
                                                                        tile.v[group] + (first + i) * tile.v_stride + d)
                                              : _mm512_setzero_si512();
        }
        interleave_bytes(x);
        transpose_whole_quarters(x);
        for (int i = 0; i < 4; ++i) {
          _mm512_storeu_si512(packed + ((d / kWidth + i) * kDepth + t / kUnit) * kUnitBytes, x[i]);
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
    for (int d = 0; d < value_dim; d += kColumns, packed += 2 * kDepth * kUnitBytes) {
      add_columns(weights, packed, depth, d);
    }
  }

 private:
  // Quarter j of vector i goes to quarter i of vector j.
  static void transpose_whole_quarters(__m512i (&x)[4]) {
    const __m512i a = _mm512_shuffle_i32x4(x[0], x[1], 0x44), b = _mm512_shuffle_i32x4(x[0], x[1], 0xee);
    const __m512i c = _mm512_shuffle_i32x4(x[2], x[3], 0x44), d = _mm512_shuffle_i32x4(x[2], x[3], 0xee);
    x[0] = _mm512_shuffle_i32x4(a, c, 0x88);
    x[1] = _mm512_shuffle_i32x4(a, c, 0xdd);
    x[2] = _mm512_shuffle_i32x4(b, d, 0x88);
    x[3] = _mm512_shuffle_i32x4(b, d, 0xdd);
  }

  static __m512i spread(const void* p) {
    int32_t four;
    __builtin_memcpy(&four, p, sizeof four);
    return _mm512_set1_epi32(four);
  }

  using Sums = __m512i[kBytePlanes][kPromptRows][2];

  static __attribute__((always_inline)) void clear(Sums& sums) {
    unrolled<kBytePlanes * kPromptRows * 2>([&](int i) __attribute__((always_inline)) {
      sums[i / (kPromptRows * 2)][i / 2 % kPromptRows][i % 2] = _mm512_setzero_si512();
    });
  }

  __attribute__((noinline)) static void score_columns(const PromptQueries<int8_t>& q, const int8_t* packed, int count,
                                                      float* scores) {
    Sums sums;
    clear(sums);
    for (int unit = 0; unit < count; ++unit, packed += kUnitBytes) {
      const __m512i keys[2] = {_mm512_loadu_si512(packed), _mm512_loadu_si512(packed + count * kUnitBytes)};
      unrolled<kBytePlanes * kPromptRows>([&](int n) __attribute__((always_inline)) {
        const int plane = n / kPromptRows, i = n % kPromptRows;
        const __m512i x = spread(q.rows[i] + (unit * kBytePlanes + plane) * kUnit);
        for (int v = 0; v < 2; ++v) sums[plane][i][v] = add_products(sums[plane][i][v], keys[v], x);
      });
    }
    unrolled<kPromptRows>([&](int i) __attribute__((always_inline)) {
      for (int v = 0; v < 2; ++v) {
        const __m512i all =
            _mm512_sub_epi32(join_planes(sums[0][i][v], sums[1][i][v]), _mm512_set1_epi32(q.offsets[i]));
        Simd::store(scores + i * kTileKeys + v * kWidth, _mm512_cvtepi32_ps(all));
      }
    });
  }

  __attribute__((noinline)) static void add_columns(const PromptWeights<uint8_t>& weights, const int8_t* packed,
                                                    int depth, int d) {
    Sums sums;
    clear(sums);
    const uint8_t* left = weights.weights;
    for (int z = 0; z < depth; ++z, packed += kUnitBytes, left += kUnit) {
      const __m512i values[2] = {_mm512_loadu_si512(packed), _mm512_loadu_si512(packed + kDepth * kUnitBytes)};
      unrolled<kBytePlanes * kPromptRows>([&](int n) __attribute__((always_inline)) {
        const int plane = n / kPromptRows, i = n % kPromptRows;
        const __m512i p = spread(left + n * kTileKeys);
        for (int v = 0; v < 2; ++v) sums[plane][i][v] = add_products(sums[plane][i][v], p, values[v]);
      });
    }
    unrolled<kPromptRows>([&](int i) __attribute__((always_inline)) {
      for (int v = 0; v < 2; ++v) {
        float* out = weights.out[i] + d + v * kWidth;
        const Vec before = Simd::mul(Simd::load(out), Simd::set1(weights.factors[i]));
        const Vec added = _mm512_cvtepi32_ps(join_planes(sums[0][i][v], sums[1][i][v]));
        Simd::store(out, Simd::fma(added, Simd::set1(weights.restores[i]), before));
      }
    });
  }
};

}  // namespace
}  // namespace rootdk::cpu
