#pragma once

// Scores of the decode kernel: four query rows by four keys at a time, lanes along head_dim, which is how keys are
// stored in memory. `Lanes` says how a target loads and multiplies them. The planes of a query go into one sum, or,
// where they are bytes of integers, into a sum each. Included once per target: internal linkage.

#include "cpu/kernel/decode_tile.h"

namespace rootdk::cpu {
namespace {

template <class Lanes>
struct FourKeyScores {
  using Element = typename Lanes::Element;
  using Lane = typename Lanes::Lane;
  using Sum = typename Lanes::Sum;
  using Vector = typename Lanes::Vector;
  static constexpr int kLanes = Lanes::kLanes;
  static constexpr int kTileKeys = Lanes::kTileKeys;
  static constexpr int kPackedLanes = 2 * kWidth;  // what Lanes::split writes

  // Packed queries: [planes, kRowBlock, head_dim padded].
  static int padded(int head_dim) { return round_up(head_dim, kLanes > kPackedLanes ? kLanes : kPackedLanes); }
  static size_t query_bytes(int head_dim) {
    return sizeof(Lane) * Lanes::kMaxPlanes * kRowBlock * static_cast<size_t>(padded(head_dim));
  }

  struct Query {
    const Lane* rows;
    float scales[kRowBlock];  // what a score is multiplied by: 1 but for integers
    int planes;               // of queries and of weights
  };

  static Query pack(const float* q, int rows, int head_dim, bool q_is_bf16, void* packed) {
    const int stride = padded(head_dim);
    auto* to = static_cast<Lane*>(packed);
    Query query{to, {1.0f, 1.0f, 1.0f, 1.0f}, q_is_bf16 && !kIntegers ? 1 : Lanes::kMaxPlanes};
    for (int r = 0; r < kRowBlock; ++r) {
      const float* from = q + r * head_dim;
      if constexpr (kIntegers) {
        if (r < rows) query.scales[r] = Lanes::query_scale(from, head_dim);
      }
      auto part = [&](int d) {
        const int there = r < rows ? smaller(head_dim - d, kWidth) : 0;
        const Vec x = there > 0 ? Simd::load_first(from + d, there) : Simd::zero();
        if constexpr (!kIntegers) return x;
        return Simd::mul(x, Simd::set1(query.scales[r] > 0.0f ? 1.0f / query.scales[r] : 0.0f));
      };
      for (int d = 0; d < stride; d += kPackedLanes) {
        Lanes::split(part(d), part(d + kWidth), query.planes, to + r * stride + d, kRowBlock * stride);
      }
    }
    return query;
  }

  // scores[r * kTileKeys + i] = q_r . k_i for the keys of a group, rounded up to a multiple of 4.
  static void score(const Query& q, const GroupKeys<Element>& group, int head_dim, float* scores) {
    const bool whole = head_dim % kLanesAtOnce == 0;
    if constexpr (!kIntegers) {
      if (q.planes == 1) {
        return whole ? score_group<1, true>(q, group, head_dim, scores)
                     : score_group<1, false>(q, group, head_dim, scores);
      }
    }
    if constexpr (Lanes::kMaxPlanes == 2) {
      whole ? score_group<2, true>(q, group, head_dim, scores) : score_group<2, false>(q, group, head_dim, scores);
    }
  }

 private:
  // Whether planes are bytes of integers, which Lanes::query_scale scales.
  static constexpr bool kIntegers = requires(const float* q) { Lanes::query_scale(q, 0); };
  using Loaded = decltype(Lanes::load(static_cast<const Element*>(nullptr)));
  // Vectors that one load gives: bytes may be widened to more than one.
  static constexpr int kParts = [] {
    if constexpr (requires { Lanes::kParts; }) return Lanes::kParts;
    return 1;
  }();

  static Vector part_of(const Loaded& loaded, int part) {
    if constexpr (kParts == 1) {
      return loaded;
    } else {
      return loaded.parts[part];
    }
  }

  // At least a line of memory, unless the lanes say that a vector is enough.
  static constexpr int kLineElements = kLine / static_cast<int>(sizeof(Element));
  static constexpr int kLanesAtOnce = [] {
    if constexpr (requires { Lanes::kLanesAtOnce; }) return Lanes::kLanesAtOnce;
    return kLineElements > kLanes ? kLineElements : kLanes;
  }();

  // Four keys that lie one after another, and four of which the last may repeat.
  struct EvenRows {
    const Element* first;
    ptrdiff_t stride;
    const Element* operator()(int i) const { return first + i * stride; }
  };
  struct ListedRows {
    const Element* rows[4];
    const Element* operator()(int i) const { return rows[i]; }
  };

  template <int kPlanes, bool kWhole>
  static void score_group(const Query& q, const GroupKeys<Element>& group, int head_dim, float* scores) {
    int t = 0;
    for (; t + 4 <= group.keys; t += 4) {
      score_planes<kPlanes, kWhole>(q, EvenRows{group.first + t * group.stride, group.stride},
                                    group.ahead + t * head_dim, head_dim, scores + t);
    }
    if (t < group.keys) {
      // Past the last key the last key is read again: its columns are masked, and the memory is valid.
      ListedRows listed;
      for (int i = 0; i < 4; ++i) listed.rows[i] = group.first + smaller(t + i, group.keys - 1) * group.stride;
      score_planes<kPlanes, kWhole>(q, listed, group.ahead + t * head_dim, head_dim, scores + t);
    }
  }

  template <int kPlanes, bool kWhole, class Rows>
  static void score_planes(const Query& q, const Rows& keys, const Element* ahead, int head_dim, float* scores) {
    if constexpr (kIntegers) {
      static_assert(kPlanes == 2);
      score_four<0, 1, kWhole>(q, keys, ahead, head_dim, scores);
      score_four<1, 1, kWhole>(q, keys, ahead, head_dim, scores);
    } else {
      score_four<0, kPlanes, kWhole>(q, keys, ahead, head_dim, scores);
    }
  }

  // Planes from kFirst on. kWhole: head_dim is a multiple of kLanesAtOnce. Two functions, because one with both loops
  // keeps its sums in memory.
  template <int kFirst, int kPlanes, bool kWhole, class Rows>
  __attribute__((noinline)) static void score_four(const Query& q, const Rows& keys, const Element* ahead, int head_dim,
                                                   float* scores) {
    const ptrdiff_t stride = padded(head_dim);
    const Sum none = Lanes::zero();
    Sum sums[kRowBlock][4] = {
        {none, none, none, none}, {none, none, none, none}, {none, none, none, none}, {none, none, none, none}};
    auto add = [&](int d) __attribute__((always_inline)) {
      Loaded k[4];
      for (int i = 0; i < 4; ++i) {
        k[i] = kWhole ? Lanes::load(keys(i) + d) : Lanes::load_first(keys(i) + d, smaller(head_dim - d, kLanes));
      }
      for (int n = 0; n < kParts * kPlanes; ++n) {
        const int part = n / kPlanes, plane = kFirst + n % kPlanes;
        for (int r = 0; r < kRowBlock; ++r) {
          const Vector x = Lanes::load_query(q.rows + (plane * kRowBlock + r) * stride + d + part * (kLanes / kParts));
          for (int i = 0; i < 4; ++i) sums[r][i] = Lanes::dot(sums[r][i], x, part_of(k[i], part));
        }
      }
    };
    constexpr int kAdvance = kWhole ? kLanesAtOnce : kLanes;
    constexpr int kLinesAhead = kWhole && kAdvance < kLineElements ? 4 * kAdvance / kLineElements : 4;
    int d = 0;
    do {
      for (int part = 0; part < kAdvance && kFirst == 0; part += kLineElements) {
        for (int i = 0; i < kLinesAhead; ++i) prefetch_line(ahead + 4 * (d + part) + i * kLineElements);
      }
      for (int part = 0; part < kAdvance; part += kLanes) add(d + part);
      d += kAdvance;
    } while (d < head_dim);
    if constexpr (kIntegers) {
      Lanes::template store_plane<kFirst>(sums, scores, kTileKeys);
    } else {
      Lanes::store_sums(sums, scores, kTileKeys);
    }
  }
};

}  // namespace
}  // namespace rootdk::cpu
