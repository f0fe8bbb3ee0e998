#pragma once

// Products of eight query rows over a tile of bf16 keys and values, with the bits that four rows at a time have: where
// eight heads share a key head, arithmetic is the limit, not memory. Four keys are transposed by lanes of a quarter, so
// that the chains of a quarter are joined without shuffles; keys and values are shuffled once for all eight rows.
// Included once per target: internal linkage.

#include "cpu/kernel/decode_avx512.h"
#include "cpu/kernel/decode_paired.h"
#include "cpu/kernel/decode_scratch.h"

namespace rootdk::cpu {
namespace {

// What the eight rows of a tile are multiplied by, and where their sums go.
struct EightWeights {
  const uint16_t* weights;  // [planes, kEightRows, kTileKeys]
  const float* factors;     // [kEightRows]: on what was summed before
  const RowStates& state;
};

struct Bf16Eight {
  using Lanes = Bf16Pairs;
  using KeyTile = Tile<Lanes>;
  static constexpr int kTileKeys = Lanes::kTileKeys;
  static constexpr int kParts = 4;        // lanes of a quarter
  static constexpr int kMostVectors = 4;  // of a key: their transposes are in registers
  static constexpr int kVectorBytes = 64;

  static bool takes(int head_dim, int value_dim) {
    return head_dim % kPairedLanes == 0 && value_dim % kPairedLanes == 0 && head_dim <= kMostVectors * kPairedLanes;
  }

  // Packed queries: vectors of [kEightRows, kParts, head_dim / 32, planes], lane `part` of each quarter in all lanes of
  // the quarter.
  static size_t query_bytes(int head_dim) {
    return static_cast<size_t>(kEightRows * kParts * Lanes::kMaxPlanes) * sizeof(uint16_t) *
           static_cast<size_t>(round_up(head_dim, kPairedLanes));
  }

  // From the rows of planes that FourKeyScores packs, of four rows from first_row on.
  static void pack(const uint16_t* rows, ptrdiff_t stride, int planes, int first_row, int head_dim, uint16_t* packed) {
    const int vectors = head_dim / kPairedLanes;
    uint16_t* to = packed + static_cast<ptrdiff_t>(first_row) * kParts * head_dim * planes;
    for (int r = 0; r < kRowBlock; ++r) {
      for (int part = 0; part < kParts; ++part) {
        const __m512i lane = _mm512_add_epi32(_mm512_set1_epi32(part),
                                              _mm512_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12));
        for (int n = 0; n < vectors * planes; ++n, to += kPairedLanes) {
          const uint16_t* from = rows + (n % planes * kRowBlock + r) * stride + n / planes * kPairedLanes;
          _mm512_storeu_si512(to, _mm512_permutexvar_epi32(lane, _mm512_loadu_si512(from)));
        }
      }
    }
  }

  // scores[r * kTileKeys + i] = q_r . k_i for the sixteen keys of a group.
  static void score(const uint16_t* packed, int planes, const GroupKeys<uint16_t>& group, int head_dim, float* scores) {
    switch (head_dim / kPairedLanes) {
      case 1: return score_planes<1>(packed, planes, group, scores);
      case 2: return score_planes<2>(packed, planes, group, scores);
      case 3: return score_planes<3>(packed, planes, group, scores);
      default: return score_planes<4>(packed, planes, group, scores);
    }
  }

  // out = out * factor + weights v over a whole tile, 32 columns at a time.
  static void add_values(const EightWeights& rows, int planes, const KeyTile& tile, const KeyTile& ahead,
                         int value_dim) {
    for (int column = 0; column < value_dim; column += kPairedLanes) {
      planes == 1 ? add_columns<1>(rows, tile, ahead, column) : add_columns<2>(rows, tile, ahead, column);
    }
  }

 private:
  template <int kVectors>
  static void score_planes(const uint16_t* packed, int planes, const GroupKeys<uint16_t>& group, float* scores) {
    planes == 1 ? score_group<kVectors, 1>(packed, group, scores) : score_group<kVectors, 2>(packed, group, scores);
  }

  template <int kVectors, int kPlanes>
  __attribute__((noinline)) static void score_group(const uint16_t* packed, const GroupKeys<uint16_t>& group,
                                                    float* scores) {
    constexpr int kFours = kVectors <= 2 ? 2 : 1;  // four keys each that are in registers at once
    Vec fours[kGroupKeys / 4][kEightRows];         // by quarters: parts of the sums of four keys
    for (int t = 0; t < kGroupKeys / 4; t += kFours) {
      __m512i k[kFours][kVectors][4];
      const uint16_t* keys = group.first + 4 * t * group.stride;
      const uint16_t* fetched = group.ahead + 4 * t * kVectors * kPairedLanes;
      for (int four = 0; four < kFours; ++four) {
        for (int n = 0; n < kVectors; ++n) {
          for (int i = 0; i < 4; ++i, fetched += kPairedLanes) {
            prefetch_line(fetched);
            k[four][n][i] = Lanes::load(keys + (four * 4 + i) * group.stride + n * kPairedLanes);
          }
          transpose_quarters(k[four][n]);
        }
      }
      const uint16_t* q = packed;
#pragma GCC unroll 1
      for (int r = 0; r < kEightRows; ++r) {
        asm("" : "+r"(q));  // or GCC 12 copies all queries to the stack before the loop
        Vec sums[kParts][kFours];
#pragma GCC unroll 4
        for (int part = 0; part < kParts; ++part) {
          for (int four = 0; four < kFours; ++four) sums[part][four] = Lanes::zero();
#pragma GCC unroll 8
          for (int n = 0; n < kVectors * kPlanes; ++n, q += kPairedLanes) {
            const __m512i x = Lanes::load_query(q);
            for (int four = 0; four < kFours; ++four) {
              sums[part][four] = Lanes::dot(sums[part][four], x, k[four][n / kPlanes][part]);
            }
          }
        }
        for (int four = 0; four < kFours; ++four) {
          fours[t + four][r] =
              _mm512_add_ps(_mm512_add_ps(sums[0][four], sums[2][four]), _mm512_add_ps(sums[1][four], sums[3][four]));
        }
      }
    }
    for (int r = 0; r < kEightRows; ++r) {
      Simd::store(scores + r * kTileKeys, add_neighbour_quarters(add_half_quarters(fours[0][r], fours[1][r]),
                                                                 add_half_quarters(fours[2][r], fours[3][r])));
    }
  }

  template <int kPlanes>
  __attribute__((noinline)) static void add_columns(const EightWeights& rows, const KeyTile& tile, const KeyTile& ahead,
                                                    int column) {
    constexpr int kFetched = 2 * kVectorBytes;  // for each pair of keys
    Vec sums[kEightRows][2];
    unrolled<kEightRows>([&](int r) __attribute__((always_inline)) { sums[r][0] = sums[r][1] = Lanes::zero(); });
    for (int g = 0; g < KeyTile::kGroups; ++g) {
      const uint16_t* v = tile.v[g] + column;
      const auto* fetched = reinterpret_cast<const char*>(ahead.keys[g] > 0 ? ahead.v[g] : tile.v[g]) +
                            column / kPairedLanes * (kGroupKeys / 2 * kFetched);
      const uint16_t* weights = rows.weights + g * kGroupKeys;
      for (int t = 0; t < kGroupKeys; t += 2, v += 2 * tile.v_stride, weights += 2, fetched += kFetched) {
        for (int line = 0; line < kFetched; line += kLine) prefetch_line(fetched + line);
        const __m512i v0 = Lanes::load(v), v1 = Lanes::load(v + tile.v_stride);
        Pairs::Vector pairs[2];
        Pairs::interleave(v0, v1, pairs);
        unrolled<kPlanes * kEightRows>([&](int n) __attribute__((always_inline)) {
          const __m512i p = Lanes::pair_of(weights + n * kTileKeys);
          Vec(&sum)[2] = sums[n % kEightRows];
          sum[0] = Lanes::dot(sum[0], p, pairs[0]);
          sum[1] = Lanes::dot(sum[1], p, pairs[1]);
        });
      }
    }
    float* out = rows.state.out + column;
    unrolled<kEightRows>([&](int r) __attribute__((always_inline)) {
      Pairs::join(sums[r], rows.factors[r], out + r * rows.state.out_stride);
    });
  }
};

struct Bf16ProductOfEight : Bf16Product {
  using Eight = Bf16Eight;
};

}  // namespace
}  // namespace rootdk::cpu
