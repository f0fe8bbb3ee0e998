#pragma once

// Products of the decode kernel over int8 as it is stored, on AVX-512 with vpdpbusd, which adds four products of bytes
// in each lane, one factor without a sign and one with. Queries and weights are integers of 16 bits, in two planes of
// bytes: x = 256 high + low. Scores put four dimensions into a lane, weighted sums four keys. Included once per target:
// internal linkage.

#include <immintrin.h>

#include "cpu/kernel/decode_bytes_prompt.h"

namespace rootdk::cpu {
namespace {

// A vector holds four keys side by side, each in one lane of every quarter, and queries are laid out to match. Keys
// lose their sign by an offset of 128, whose share of a sum depends on the query alone.
struct ByteScores {
  using Lanes = ByteLanes;
  static constexpr int kTileKeys = Lanes::kTileKeys;
  static constexpr int kParts = 4;            // lanes of a quarter
  static constexpr int kKeysTogether = 8;     // as many sums as there are registers for
  static constexpr int kLargest = 127 * 257;  // both planes have a sign
  static constexpr int kPlaneRows = kBytePlanes * kRowBlock;

  static int padded(int head_dim) { return round_up(head_dim, kByteLanes); }

  // Packed queries: the planes as rows, [kPlaneRows, head_dim padded], and laid out for the products, vectors of
  // [head_dim padded / 64, kParts, kPlaneRows]: of 64 dimensions, lane `part` of each quarter in all lanes of the
  // quarter.
  static size_t plane_bytes(int head_dim) {
    return static_cast<size_t>(kPlaneRows) * static_cast<size_t>(padded(head_dim));
  }
  static size_t query_bytes(int head_dim) { return (1 + kParts) * plane_bytes(head_dim); }

  struct Query {
    const int8_t* vectors;
    float scales[kRowBlock];     // what a score is multiplied by
    int32_t offsets[kRowBlock];  // the share of the keys' offsets in a sum
  };

  static Query pack(const float* q, int rows, int head_dim, bool, void* packed) {
    const int stride = padded(head_dim);
    auto* planes = static_cast<int8_t*>(packed);
    Query query{planes + plane_bytes(head_dim), {1.0f, 1.0f, 1.0f, 1.0f}, {}};
    for (int r = 0; r < kRowBlock; ++r) {
      const float* from = q + r * head_dim;
      if (r < rows) query.scales[r] = query_scale(from, head_dim);
      const Vec inverse = Simd::set1(query.scales[r] > 0.0f ? 1.0f / query.scales[r] : 0.0f);
      __m512i sum = _mm512_setzero_si512();
      for (int d = 0; d < stride; d += kWidth) {
        const int there = r < rows ? smaller(head_dim - d, kWidth) : 0;
        const Vec scaled = there > 0 ? Simd::mul(Simd::load_first(from + d, there), inverse) : Simd::zero();
        const __m512i x = _mm512_cvtps_epi32(scaled);
        sum = _mm512_add_epi32(sum, x);
        // The low byte has a sign too: the high one is what is nearest.
        store_low_bytes(planes + r * stride + d, _mm512_srai_epi32(_mm512_add_epi32(x, _mm512_set1_epi32(128)), 8));
        store_low_bytes(planes + (kRowBlock + r) * stride + d, x);
      }
      query.offsets[r] = _mm512_reduce_add_epi32(_mm512_slli_epi32(sum, 7));
    }
    lay_out(planes, stride, planes + plane_bytes(head_dim));
    return query;
  }

  // scores[r * kTileKeys + i] = q_r . k_i / scales[r] for the keys of a group, and anything for i beyond them.
  static void score(const Query& q, const GroupKeys<int8_t>& group, int head_dim, float* scores) {
    const bool whole = group.keys == kGroupKeys && head_dim % kByteLanes == 0;
    whole ? score_group<true>(q, group, head_dim, scores) : score_group<false>(q, group, head_dim, scores);
  }

 private:
  static void store_low_bytes(int8_t* to, __m512i x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(x));
  }

  // The largest magnitude fills 15 bits, less where a long sum could overflow. NaN where q holds one.
  static float query_scale(const float* q, int head_dim) {
    const float sum_limit = 2147483520.0f / (127.0f * static_cast<float>(head_dim));
    Vec largest = Simd::zero();
    __mmask16 nan = 0;
    for (int d = 0; d < head_dim; d += kWidth) {
      const Vec x = Simd::load_first(q + d, smaller(kWidth, head_dim - d));
      nan = static_cast<__mmask16>(nan | _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q));
      largest = Simd::max(largest, Simd::abs(x));
    }
    if (nan) return __builtin_nanf("");
    return Simd::reduce_max(largest) / (sum_limit < kLargest ? sum_limit : static_cast<float>(kLargest));
  }

  static void lay_out(const int8_t* planes, int stride, int8_t* vectors) {
    constexpr ptrdiff_t kPart = kPlaneRows * kByteLanes;
    for (int d = 0; d < stride; d += kByteLanes) {
      for (int row = 0; row < kPlaneRows; ++row) {
        const __m512i x = _mm512_loadu_si512(planes + row * stride + d);
        int8_t* to = vectors + d * kParts * kPlaneRows + row * kByteLanes;
        _mm512_storeu_si512(to, _mm512_shuffle_epi32(x, _MM_PERM_AAAA));
        _mm512_storeu_si512(to + kPart, _mm512_shuffle_epi32(x, _MM_PERM_BBBB));
        _mm512_storeu_si512(to + 2 * kPart, _mm512_shuffle_epi32(x, _MM_PERM_CCCC));
        _mm512_storeu_si512(to + 3 * kPart, _mm512_shuffle_epi32(x, _MM_PERM_DDDD));
      }
    }
  }

  template <bool kWhole>
  __attribute__((noinline)) static void score_group(const Query& q, const GroupKeys<int8_t>& group, int head_dim,
                                                    float* scores) {
    static_assert(kGroupKeys == 2 * kKeysTogether);
    __m512i sums[2][kRowBlock];
    score_eight<kWhole>(q, group, 0, head_dim, sums[0]);
    score_eight<kWhole>(q, group, kKeysTogether, head_dim, sums[1]);
    for (int r = 0; r < kRowBlock; ++r) {
      const __m512i all = add_neighbour_quarters(sums[0][r], sums[1][r]);
      Simd::store(scores + r * kTileKeys, _mm512_cvtepi32_ps(_mm512_sub_epi32(all, _mm512_set1_epi32(q.offsets[r]))));
    }
  }

  // Eight keys from `first` on. Of each row by quarters: two parts of the sums of four keys, and two of the other four.
  // kWhole: all keys are there and head_dim is a whole number of vectors.
  template <bool kWhole>
  __attribute__((noinline)) static void score_eight(const Query& q, const GroupKeys<int8_t>& group, int first,
                                                    int head_dim, __m512i (&sums)[kRowBlock]) {
    __m512i high[2][kRowBlock], low[2][kRowBlock];
    unrolled<2 * kRowBlock>([&](int i) __attribute__((always_inline)) {
      high[i / kRowBlock][i % kRowBlock] = low[i / kRowBlock][i % kRowBlock] = _mm512_setzero_si512();
    });
    const int8_t* query = q.vectors;
    const int8_t* keys = group.first + static_cast<ptrdiff_t>(first) * head_dim;
    const int8_t* ahead = group.ahead + static_cast<ptrdiff_t>(first) * head_dim;
    for (int d = 0; d < head_dim; d += kByteLanes) {
      __m512i k[2][4];
      for (int i = 0; i < kKeysTogether; ++i) {
        prefetch_line(ahead + kKeysTogether * d + i * kLine);
        const int8_t* from = keys + i * head_dim + d;
        const __mmask64 there = first_bytes(first + i < group.keys ? head_dim - d : 0);
        const __m512i stored = kWhole ? _mm512_loadu_si512(from) : _mm512_maskz_loadu_epi8(there, from);
        k[i / 4][i % 4] = _mm512_xor_si512(stored, _mm512_set1_epi8(-128));
      }
      transpose_quarters(k[0]);
      transpose_quarters(k[1]);
      for (int part = 0; part < kParts; ++part) {
        for (int r = 0; r < kRowBlock; ++r, query += kByteLanes) {
          const __m512i x = _mm512_loadu_si512(query);
          for (int four = 0; four < 2; ++four) high[four][r] = add_products(high[four][r], k[four][part], x);
        }
        for (int r = 0; r < kRowBlock; ++r, query += kByteLanes) {
          const __m512i x = _mm512_loadu_si512(query);
          for (int four = 0; four < 2; ++four) low[four][r] = add_products(low[four][r], k[four][part], x);
        }
      }
    }
    unrolled<kRowBlock>([&](int r) __attribute__((always_inline)) {
      sums[r] = add_half_quarters(join_planes(high[0][r], low[0][r]), join_planes(high[1][r], low[1][r]));
    });
  }
};

struct ByteProduct : ByteScores {
  using Element = int8_t;
  using Weight = uint8_t;
  using Prompt = BytePrompt;
  static constexpr int kWeightPlanes = kBytePlanes;
  static constexpr int kPassRows = Lanes::kPassRows;
  static constexpr int kVectors = kTileKeys / kWidth;

  // The weights of one row, [kTileKeys] in each plane. Returns the factor that restores them, a power of two: the
  // largest weight has 16 bits. NaN where a weight is.
  static float store_weights(const Query&, const Vec (&p)[kVectors], Weight* weights, int plane_stride) {
    constexpr int kNotFinite = 255, kBias = 127;
    // Smaller numbers than 2^-111 have fewer bits, so that the factor and its inverse are normal numbers.
    constexpr int kSmallest = 16;
    const __m512i largest =
        _mm512_srli_epi32(largest_in_every_lane(p), 23);  // its exponent; NaN may have a sign on top
    const __m512i exponent = _mm512_max_epi32(largest, _mm512_set1_epi32(kSmallest));
    const __m512i factor = _mm512_sub_epi32(exponent, _mm512_set1_epi32(15));
    const __m512i inverse = _mm512_sub_epi32(_mm512_set1_epi32(2 * kBias), factor);
    for (int v = 0; v < kVectors; v += 4) {
      store_planes(&p[v], power_of_two(inverse), weights + v * kWidth, plane_stride);
    }
    const bool finite = _mm_cvtsi128_si32(_mm512_castsi512_si128(largest)) < kNotFinite;
    return finite ? _mm512_cvtss_f32(power_of_two(factor)) : __builtin_nanf("");
  }

  // out = out * factor + weights v for the rows of a block, which begins at first_row.
  template <class Values>
  static void add_values(const Query&, const Values& values, const RowStates& state, int first_row) {
    for_each_pass<kPassRows, kByteLanes, kByteLanes>(
        values.value_dim,
        [&](const ValuePass& pass) {
          return add_block(values, state, first_row, pass, [](const int8_t* p) { return _mm512_loadu_si512(p); });
        },
        [&](const ValuePass& pass, int columns) {
          return add_block(values, state, first_row, pass,
                           [columns](const int8_t* p) { return _mm512_maskz_loadu_epi8(first_bytes(columns), p); });
        });
  }

 private:
  static __m512 power_of_two(__m512i exponent) { return _mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23)); }

  // Weights are not negative: their bits are in their order, and NaN is above all.
  static __m512i largest_in_every_lane(const Vec (&p)[kVectors]) {
    const auto larger = [](__m512i a, __m512i b) { return _mm512_max_epu32(a, b); };
    __m512i top[2] = {_mm512_castps_si512(p[0]), _mm512_castps_si512(p[1])};
    for (int v = 2; v < kVectors; ++v) top[v % 2] = larger(top[v % 2], _mm512_castps_si512(p[v]));
    const __m512i lanes = larger(top[0], top[1]);
    const __m512i halves = larger(lanes, _mm512_shuffle_i32x4(lanes, lanes, 0x4e));
    const __m512i quarters = larger(halves, _mm512_shuffle_i32x4(halves, halves, 0xb1));
    const __m512i pairs = larger(quarters, _mm512_shuffle_epi32(quarters, _MM_PERM_BADC));
    return larger(pairs, _mm512_shuffle_epi32(pairs, _MM_PERM_CDAB));
  }

  // 64 weights. Packing works in quarters and leaves four keys in each lane: the lanes are put in order.
  static void store_planes(const Vec* p, Vec inverse, Weight* weights, int plane_stride) {
    const auto whole = [&](Vec x) { return _mm512_cvtps_epi32(Simd::mul(x, inverse)); };
    const __m512i in_order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i low_byte = _mm512_set1_epi16(255);
    const __m512i a = _mm512_packus_epi32(whole(p[0]), whole(p[1]));
    const __m512i b = _mm512_packus_epi32(whole(p[2]), whole(p[3]));
    const __m512i high = _mm512_packus_epi16(_mm512_srli_epi16(a, 8), _mm512_srli_epi16(b, 8));
    const __m512i low = _mm512_packus_epi16(_mm512_and_si512(a, low_byte), _mm512_and_si512(b, low_byte));
    _mm512_storeu_si512(weights, _mm512_permutexvar_epi32(in_order, high));
    _mm512_storeu_si512(weights + plane_stride, _mm512_permutexvar_epi32(in_order, low));
  }

  // kPassRows rows by 64 columns of the output. Returns what it has fetched.
  template <class Values, class Load>
  __attribute__((noinline)) static int add_block(const Values& values, const RowStates& state, int first_row,
                                                 const ValuePass& pass, Load load) {
    __m512i sums[kBytePlanes][kPassRows][4];
    unrolled<kBytePlanes * kPassRows * 4>([&](int i) __attribute__((always_inline)) {
      sums[i / (kPassRows * 4)][i / 4 % kPassRows][i % 4] = _mm512_setzero_si512();
    });
    const Weight* weights = values.weights + pass.row * kTileKeys;
    constexpr int kShare = Values::share(kPassRows, kByteLanes);
    values.template for_each_key_group<4, kShare>(
        pass, [&](int key, const int8_t* const(&rows)[4]) __attribute__((always_inline)) {
          __m512i v[4] = {load(rows[0]), load(rows[1]), load(rows[2]), load(rows[3])};
          interleave_bytes(v);
          for (int plane = 0; plane < kBytePlanes; ++plane) {
            for (int r = 0; r < kPassRows; ++r) {
              const __m512i p = four_of(weights + (plane * kRowBlock + r) * kTileKeys + key);
              for (int i = 0; i < 4; ++i) sums[plane][r][i] = add_products(sums[plane][r][i], p, v[i]);
            }
          }
        });
    float* out = state.out + (first_row + pass.row) * state.out_stride + pass.column;
    unrolled<kPassRows>([&](int r) __attribute__((always_inline)) {
      const int row = pass.row + r;
      join_columns(sums[0][r], sums[1][r], values.restores[row], values.factors[row], out + r * state.out_stride);
    });
    return kShare;
  }

  // The weights of four neighbouring keys in every lane.
  static __m512i four_of(const Weight* p) {
    int32_t four;
    __builtin_memcpy(&four, p, sizeof four);
    return _mm512_set1_epi32(four);
  }

  // out = out * factor + sums * restore, back in the order of the columns.
  static void join_columns(const __m512i (&high)[4], const __m512i (&low)[4], float restore, float factor, float* out) {
    const __m512i s0 = join_planes(high[0], low[0]), s1 = join_planes(high[1], low[1]);
    const __m512i s2 = join_planes(high[2], low[2]), s3 = join_planes(high[3], low[3]);
    const __m512i a = _mm512_shuffle_i32x4(s0, s1, 0x44), b = _mm512_shuffle_i32x4(s0, s1, 0xee);
    const __m512i c = _mm512_shuffle_i32x4(s2, s3, 0x44), d = _mm512_shuffle_i32x4(s2, s3, 0xee);
    const __m512i columns[4] = {_mm512_shuffle_i32x4(a, c, 0x88), _mm512_shuffle_i32x4(a, c, 0xdd),
                                _mm512_shuffle_i32x4(b, d, 0x88), _mm512_shuffle_i32x4(b, d, 0xdd)};
    for (int i = 0; i < 4; ++i) {
      const Vec before = Simd::mul(Simd::load(out + i * kWidth), Simd::set1(factor));
      Simd::store(out + i * kWidth, Simd::fma(_mm512_cvtepi32_ps(columns[i]), Simd::set1(restore), before));
    }
  }
};

}  // namespace
}  // namespace rootdk::cpu
