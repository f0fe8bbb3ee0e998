#pragma once

// Scores of the decode kernel over int8 by products of bytes on AVX-512: see decode_bytes.h. Included once per target:
// internal linkage.

#include <immintrin.h>

#include "cpu/kernel/decode_avx512.h"
#include "cpu/kernel/decode_bytes.h"

namespace rootdk::cpu {
namespace {

// A vector holds four keys side by side, each in one lane of every quarter, and queries are laid out to match.
struct ByteScores {
  using Lanes = ByteLanes;
  static constexpr int kTileKeys = Lanes::kTileKeys;
  static constexpr int kParts = 4;         // lanes of a quarter
  static constexpr int kKeysTogether = 8;  // as many sums as there are registers for
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
      if (r < rows) query.scales[r] = byte_query_scale(from, head_dim);
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
        k[i / 4][i % 4] = Bytes::keys(stored);
      }
      transpose_quarters(k[0]);
      transpose_quarters(k[1]);
      for (int part = 0; part < kParts; ++part) {
        for (int r = 0; r < kRowBlock; ++r, query += kByteLanes) {
          const __m512i x = _mm512_loadu_si512(query);
          for (int four = 0; four < 2; ++four) high[four][r] = Bytes::add_scores(high[four][r], k[four][part], x);
        }
        for (int r = 0; r < kRowBlock; ++r, query += kByteLanes) {
          const __m512i x = _mm512_loadu_si512(query);
          for (int four = 0; four < 2; ++four) low[four][r] = Bytes::add_scores(low[four][r], k[four][part], x);
        }
      }
    }
    unrolled<kRowBlock>([&](int r) __attribute__((always_inline)) {
      sums[r] = add_half_quarters(Bytes::join_planes(high[0][r], low[0][r]), Bytes::join_planes(high[1][r], low[1][r]));
    });
  }
};

}  // namespace
}  // namespace rootdk::cpu
