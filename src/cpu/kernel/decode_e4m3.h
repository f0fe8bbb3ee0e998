#pragma once

// Products of the decode kernel over e4m3 on AVX-512 with vpermi2b and vdpbf16ps. Every e4m3 number is a bf16 number:
// seven bits of magnitude choose the two bytes of it from two tables of 128 bytes in registers, and the sign joins
// them. Each element is looked up once for all four rows of a block. Included once per target: internal linkage.

#include <immintrin.h>

#include "cpu/kernel/decode_avx512.h"
#include "cpu/kernel/decode_paired.h"
#include "cpu/kernel/e4m3_bytes.h"

namespace rootdk::cpu {
namespace {

class E4m3Table {
 public:
  E4m3Table() {
    for (int half = 0; half < 2; ++half) {
      low_[half] = _mm512_load_si512(kE4m3Bytes.low + half * kByteLanes);
      high_[half] = _mm512_load_si512(kE4m3Bytes.high + half * kByteLanes);
    }
  }

  // 64 numbers as bf16: in each 128-bit quarter those of its first eight bytes, and those of the others.
  __attribute__((always_inline)) void widen(__m512i x, __m512i& first, __m512i& second) const {
    constexpr int kOrMasked = 0xf8;  // a | b & c
    const __m512i low = _mm512_permutex2var_epi8(low_[0], x, low_[1]);
    const __m512i magnitude = _mm512_permutex2var_epi8(high_[0], x, high_[1]);
    const __m512i high = _mm512_ternarylogic_epi32(magnitude, x, _mm512_set1_epi8(-128), kOrMasked);
    first = _mm512_unpacklo_epi8(low, high);
    second = _mm512_unpackhi_epi8(low, high);
  }

 private:
  __m512i low_[2], high_[2];
};

struct E4m3Lanes {
  using Element = uint8_t;
  static constexpr int kPassRows = kRowBlock;
  static constexpr int kTileKeys = ManyKeys::kTileKeys;
};

// As in ByteScores, a lane belongs to one key, here with two dimensions of it: four keys are transposed by pairs of
// bytes before they are widened.
struct E4m3Scores {
  using Lanes = E4m3Lanes;
  static constexpr int kTileKeys = Lanes::kTileKeys;
  static constexpr int kMaxPlanes = Bf16Pairs::kMaxPlanes;
  static constexpr int kParts = 8;                    // pairs of dimensions in a quarter
  static constexpr int kKeysTogether = 8;             // the transposed bytes of more would not stay in registers
  static constexpr int kQuarterDistances[] = {2, 1};  // of the quarters that score_group adds, one after another

  static int padded(int head_dim) { return round_up(head_dim, kByteLanes); }

  // Packed queries: the planes as rows, [kMaxPlanes * kRowBlock, head_dim padded], and laid out for the products,
  // vectors of [head_dim padded / 64, kParts, planes, kRowBlock]: of 64 dimensions, pair `part` of each 16 in all lanes
  // of a quarter.
  static size_t plane_bytes(int head_dim) {
    return sizeof(uint16_t) * kMaxPlanes * kRowBlock * static_cast<size_t>(padded(head_dim));
  }
  static size_t query_bytes(int head_dim) { return 5 * plane_bytes(head_dim); }

  struct Query {
    const uint16_t* vectors;
    float scales[kRowBlock];  // what a score is multiplied by: 1
    int planes;               // of queries and of weights
  };

  static Query pack(const float* q, int rows, int head_dim, bool q_is_bf16, void* packed) {
    const int stride = padded(head_dim);
    auto* planes = static_cast<uint16_t*>(packed);
    uint16_t* vectors = planes + plane_bytes(head_dim) / sizeof(uint16_t);
    const Query query{vectors, {1.0f, 1.0f, 1.0f, 1.0f}, q_is_bf16 ? 1 : kMaxPlanes};
    for (int r = 0; r < kRowBlock; ++r) {
      auto part = [&](int d) {
        const int there = r < rows ? smaller(head_dim - d, kWidth) : 0;
        return there > 0 ? Simd::load_first(q + r * head_dim + d, there) : Simd::zero();
      };
      for (int d = 0; d < stride; d += kPairedLanes) {
        Bf16Pairs::split(part(d), part(d + kWidth), query.planes, planes + r * stride + d, kRowBlock * stride);
      }
    }
    lay_out(planes, stride, query.planes * kRowBlock, vectors);
    return query;
  }

  // scores[r * kTileKeys + i] = q_r . k_i for the keys of a group, and anything for i beyond them.
  static void score(const Query& q, const GroupKeys<uint8_t>& group, int head_dim, float* scores) {
    const bool whole = group.keys == kGroupKeys && head_dim % kByteLanes == 0;
    if (q.planes == 1) {
      whole ? score_group<1, true>(q, group, head_dim, scores) : score_group<1, false>(q, group, head_dim, scores);
    } else {
      whole ? score_group<2, true>(q, group, head_dim, scores) : score_group<2, false>(q, group, head_dim, scores);
    }
  }

 private:
  static void lay_out(const uint16_t* planes, int stride, int rows, uint16_t* vectors) {
    for (int d = 0; d < stride; d += kByteLanes) {
      for (int part = 0; part < kParts; ++part) {
        for (int row = 0; row < rows; ++row, vectors += kPairedLanes) {
          const uint16_t* from = planes + row * stride + d + 2 * part;
          const __m512i pairs = _mm512_setr_epi32(pair_at(from), pair_at(from + 16), pair_at(from + 32),
                                                  pair_at(from + 48), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
          const __m512i quarters = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
          _mm512_storeu_si512(vectors, _mm512_permutexvar_epi32(quarters, pairs));
        }
      }
    }
  }

  static int pair_at(const uint16_t* p) {
    int pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return pair;
  }

  // Four keys by pairs of bytes: vector i has, in each quarter, pair 2 i of all four keys and then pair 2 i + 1.
  static void transpose_pairs(__m512i (&x)[4]) {
    const __m512i a = _mm512_unpacklo_epi16(x[0], x[1]), b = _mm512_unpackhi_epi16(x[0], x[1]);
    const __m512i c = _mm512_unpacklo_epi16(x[2], x[3]), d = _mm512_unpackhi_epi16(x[2], x[3]);
    x[0] = _mm512_unpacklo_epi32(a, c);
    x[1] = _mm512_unpackhi_epi32(a, c);
    x[2] = _mm512_unpacklo_epi32(b, d);
    x[3] = _mm512_unpackhi_epi32(b, d);
  }

  template <int kPlanes, bool kWhole>
  __attribute__((noinline)) static void score_group(const Query& q, const GroupKeys<uint8_t>& group, int head_dim,
                                                    float* scores) {
    static_assert(kGroupKeys == 2 * kKeysTogether);
    const E4m3Table table;
    Vec sums[2][kRowBlock];
    score_eight<kPlanes, kWhole>(table, q, group, 0, head_dim, sums[0]);
    score_eight<kPlanes, kWhole>(table, q, group, kKeysTogether, head_dim, sums[1]);
    for (int r = 0; r < kRowBlock; ++r) {
      Simd::store(scores + r * kTileKeys, add_neighbour_quarters(sums[0][r], sums[1][r]));
    }
  }

  // Eight keys from `first` on. Of each row by quarters: two parts of the sums of four keys, and two of the other four.
  // kWhole: all keys are there and head_dim is a whole number of vectors.
  template <int kPlanes, bool kWhole>
  __attribute__((always_inline)) static void score_eight(const E4m3Table& table, const Query& q,
                                                         const GroupKeys<uint8_t>& group, int first, int head_dim,
                                                         Vec (&result)[kRowBlock]) {
    Vec sums[2][kRowBlock];
    unrolled<2 * kRowBlock>([&](int i) __attribute__((always_inline)) {
      sums[i / kRowBlock][i % kRowBlock] = Bf16Pairs::zero();
    });
    const uint16_t* query = q.vectors;
    const uint8_t* keys = group.first + first * group.stride;
    const uint8_t* ahead = group.ahead + static_cast<ptrdiff_t>(first) * head_dim;
    for (int d = 0; d < head_dim; d += kByteLanes) {
      __m512i k[2][4];
      for (int i = 0; i < kKeysTogether; ++i) {
        prefetch_line(ahead + kKeysTogether * d + i * kLine);
        const uint8_t* from = keys + i * group.stride + d;
        const __mmask64 there = first_bytes(first + i < group.keys ? head_dim - d : 0);
        k[i / 4][i % 4] = kWhole ? _mm512_loadu_si512(from) : _mm512_maskz_loadu_epi8(there, from);
      }
      transpose_pairs(k[0]);
      transpose_pairs(k[1]);
      for (int i = 0; i < kParts / 2; ++i) {
        __m512i pairs[2][2];  // [part, four]
        for (int four = 0; four < 2; ++four) table.widen(k[four][i], pairs[0][four], pairs[1][four]);
        for (int part = 0; part < 2; ++part) {
          for (int row = 0; row < kPlanes * kRowBlock; ++row, query += kPairedLanes) {
            const __m512i x = _mm512_loadu_si512(query);
            for (int four = 0; four < 2; ++four) {
              sums[four][row % kRowBlock] = Bf16Pairs::dot(sums[four][row % kRowBlock], x, pairs[part][four]);
            }
          }
        }
      }
    }
    unrolled<kRowBlock>([&](int r)
                            __attribute__((always_inline)) { result[r] = add_half_quarters(sums[0][r], sums[1][r]); });
  }
};

// 32 numbers as bf16, in order.
struct LoadE4m3 {
  static __m512i load(const uint8_t* p, int n) {
    const __m512i bytes = _mm512_zextsi256_si512(_mm256_maskz_loadu_epi8(Pairs::first(n), p));
    const __m512i eights = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 4, 2, 4, 3, 4), bytes);
    __m512i first, second;
    E4m3Table().widen(eights, first, second);
    return first;
  }
};

struct E4m3Product : E4m3Scores, PairedWeights<E4m3Product, E4m3Scores::kTileKeys> {
  using Element = uint8_t;
  using Prompt = PromptProduct<PairedUnits<Lanes, Chains<kParts, kQuarterDistances>, LoadE4m3>>;
  static constexpr int kPassRows = Lanes::kPassRows;

  template <int kPlanes, class Values>
  static void add_planes(const Values& values, const RowStates& state, int first_row) {
    for_each_pass<kPassRows, kByteLanes, kByteLanes>(
        values.value_dim,
        [&](const ValuePass& pass) {
          return add_block<kPlanes>(values, state, first_row, pass,
                                    [](const uint8_t* p) { return _mm512_loadu_si512(p); });
        },
        [&](const ValuePass& pass, int columns) {
          return add_block<kPlanes>(values, state, first_row, pass, [columns](const uint8_t* p) {
            return _mm512_maskz_loadu_epi8(first_bytes(columns), p);
          });
        });
  }

 private:
  // Four rows by 64 columns of the output. Two keys are interleaved by bytes, so that widening gives pairs of them: sum
  // i has, in each quarter, columns 4 i to 4 i + 3 of its sixteen. Returns what it has fetched.
  template <int kPlanes, class Values, class Load>
  __attribute__((noinline)) static int add_block(const Values& values, const RowStates& state, int first_row,
                                                 const ValuePass& pass, Load load) {
    const E4m3Table table;
    Vec sums[kRowBlock][4];
    unrolled<kRowBlock * 4>([&](int i) __attribute__((always_inline)) { sums[i / 4][i % 4] = Bf16Pairs::zero(); });
    constexpr int kShare = Values::share(kPassRows, kByteLanes);
    values.template for_each_key_group<2, kShare>(
        pass, [&](int key, const uint8_t* const(&rows)[2]) __attribute__((always_inline)) {
          const __m512i v0 = load(rows[0]), v1 = load(rows[1]);
          __m512i pairs[4];
          table.widen(_mm512_unpacklo_epi8(v0, v1), pairs[0], pairs[1]);
          table.widen(_mm512_unpackhi_epi8(v0, v1), pairs[2], pairs[3]);
          for (int plane = 0; plane < kPlanes; ++plane) {
            for (int r = 0; r < kRowBlock; ++r) {
              const __m512i p = Bf16Pairs::pair_of(values.weights + (plane * kRowBlock + r) * kTileKeys + key);
              for (int i = 0; i < 4; ++i) sums[r][i] = Bf16Pairs::dot(sums[r][i], p, pairs[i]);
            }
          }
        });
    float* out = state.out + first_row * state.out_stride + pass.column;
    unrolled<kRowBlock>([&](int r) __attribute__((always_inline)) {
      join_columns(sums[r], values.factors[r], out + r * state.out_stride);
    });
    return kShare;
  }

  // out = out * factor + sums, back in the order of the columns.
  static void join_columns(const Vec (&sums)[4], float factor, float* out) {
    const __m512 a = _mm512_shuffle_f32x4(sums[0], sums[1], 0x44), b = _mm512_shuffle_f32x4(sums[0], sums[1], 0xee);
    const __m512 c = _mm512_shuffle_f32x4(sums[2], sums[3], 0x44), d = _mm512_shuffle_f32x4(sums[2], sums[3], 0xee);
    const __m512 columns[4] = {_mm512_shuffle_f32x4(a, c, 0x88), _mm512_shuffle_f32x4(a, c, 0xdd),
                               _mm512_shuffle_f32x4(b, d, 0x88), _mm512_shuffle_f32x4(b, d, 0xdd)};
    for (int i = 0; i < 4; ++i) {
      Simd::store(out + i * kWidth, Simd::fma(Simd::load(out + i * kWidth), Simd::set1(factor), columns[i]));
    }
  }
};

}  // namespace
}  // namespace rootdk::cpu
