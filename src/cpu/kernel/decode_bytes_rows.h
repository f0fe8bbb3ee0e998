#pragma once

// Scores of the decode kernel over int8 by products of bytes, lanes along head_dim: see decode_scores.h and
// decode_bytes.h. For vectors of four lanes, whose sums over lanes are cheap. Included once per target: internal
// linkage.

#include "cpu/kernel/decode_bytes.h"
#include "cpu/kernel/decode_scores.h"

namespace rootdk::cpu {
namespace {

struct ByteRowLanes : ByteLanes {
  using Lane = int8_t;
  using Vector = Bytes::Vector;
  using Sum = Bytes::Words;
  static constexpr int kMaxPlanes = kBytePlanes;
  static constexpr int kLanes = Bytes::kLanes;
  static constexpr int kLanesAtOnce = kLanes;

  static Vector load(const int8_t* p) { return Bytes::keys(Bytes::load(p)); }
  static Vector load_first(const int8_t* p, int n) { return Bytes::keys(Bytes::load_first(p, n)); }
  static Vector load_query(const int8_t* p) { return Bytes::load(p); }
  static Sum zero() { return Bytes::set1(0); }
  static Sum dot(Sum sum, Vector query, Vector keys) { return Bytes::add_scores(sum, keys, query); }

  static float query_scale(const float* q, int head_dim) { return byte_query_scale(q, head_dim); }
  static void split(Vec x, Vec y, int, int8_t* to, int plane_stride) {
    Bytes::store_signed_planes(x, y, to, plane_stride);
  }

  // The sums of the high plane wait where the scores will be.
  template <int kPlane>
  static void store_plane(const Sum (&sums)[kRowBlock][4], float* to, int stride) {
    static_assert(kWidth == 4 && !Bytes::kOffsetsKeys);
    unrolled<kRowBlock>([&](int r) __attribute__((always_inline)) {
      const Sum keys = Bytes::add_lanes(sums[r]);
      float* row = to + r * stride;
      Simd::store(row, kPlane == 0 ? Bytes::as_floats(keys)
                                   : Bytes::to_float(Bytes::join_planes(Bytes::bits(Simd::load(row)), keys)));
    });
  }
};

using ByteRowScores = FourKeyScores<ByteRowLanes>;

}  // namespace
}  // namespace rootdk::cpu
