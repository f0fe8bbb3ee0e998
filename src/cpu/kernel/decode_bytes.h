#pragma once

// Products of the decode kernel over int8 as it is stored, by products of bytes (Bytes in simd/bytes_*.h). Queries and
// weights are integers of 16 bits, in two planes of bytes: x = 256 high + low. Scores put four dimensions into a lane,
// weighted sums four keys. Integers add exactly: a target has the integers of any other. Included once per target:
// internal linkage.

#include "cpu/kernel/decode_bytes_prompt.h"

namespace rootdk::cpu {
namespace {

// What an integer of a query stands for. The largest magnitude fills 15 bits, so that both planes have a sign, less
// where a long sum could overflow. NaN where q holds one.
inline float byte_query_scale(const float* q, int head_dim) {
  constexpr int kLargest = 127 * 257;
  const float sum_limit = 2147483520.0f / (127.0f * static_cast<float>(head_dim));
  Vec largest = Simd::zero();
  Bytes::Nans nans;
  for (int d = 0; d < head_dim; d += kWidth) {
    const Vec x = Simd::load_first(q + d, smaller(kWidth, head_dim - d));
    nans.add(x);
    largest = Simd::max(largest, Simd::abs(x));
  }
  if (nans.any()) return __builtin_nanf("");
  return Simd::reduce_max(largest) / (sum_limit < kLargest ? sum_limit : static_cast<float>(kLargest));
}

// Weighted sums of bytes on top of the scores of a target.
template <class Scores>
struct ByteProduct : Scores {
  using Lanes = ByteLanes;
  using Element = int8_t;
  using Weight = uint8_t;
  using Prompt = BytePrompt;
  using typename Scores::Query;
  static constexpr int kTileKeys = Lanes::kTileKeys;
  static constexpr int kWeightPlanes = kBytePlanes;
  static constexpr int kPassRows = Lanes::kPassRows;
  static constexpr int kVectors = kTileKeys / kWidth;

  // The weights of one row, [kTileKeys] in each plane. Returns the factor that restores them, a power of two: the
  // largest weight has 16 bits. NaN where a weight is.
  static float store_weights(const Query&, const Vec (&p)[kVectors], Weight* weights, int plane_stride) {
    constexpr int kNotFinite = 255, kBias = 127;
    // Smaller numbers than 2^-111 have fewer bits, so that the factor and its inverse are normal numbers.
    constexpr int kSmallest = 16;
    const Words largest = Bytes::exponent(largest_in_every_lane(p));  // NaN may have a sign on top
    const Words exponent = Bytes::larger(largest, Bytes::set1(kSmallest));
    const Words factor = Bytes::sub(exponent, Bytes::set1(15));
    const Words inverse = Bytes::sub(Bytes::set1(2 * kBias), factor);
    for (int v = 0; v < kVectors; v += 4) {
      Bytes::store_planes(&p[v], Bytes::power_of_two(inverse), weights + v * kWidth, plane_stride);
    }
    const bool finite = Bytes::first_of(largest) < kNotFinite;
    return finite ? Bytes::first_of(Bytes::power_of_two(factor)) : __builtin_nanf("");
  }

  // out = out * factor + weights v for the rows of a block, which begins at first_row.
  template <class Values>
  static void add_values(const Query&, const Values& values, const RowStates& state, int first_row) {
    Words starts[kRowBlock];
    for (int r = 0; r < kRowBlock; ++r) {
      starts[r] = start_of_values<kTileKeys>(values.weights + r * kTileKeys, kRowBlock * kTileKeys);
    }
    for_each_pass<kPassRows, Bytes::kLanes, Bytes::kLanes>(
        values.value_dim,
        [&](const ValuePass& pass) {
          return add_block(values, state, first_row, pass, starts, [](const int8_t* p) { return Bytes::load(p); });
        },
        [&](const ValuePass& pass, int columns) {
          return add_block(values, state, first_row, pass, starts,
                           [columns](const int8_t* p) { return Bytes::load_first(p, columns); });
        });
  }

 private:
  using Words = Bytes::Words;

  // Weights are not negative: their bits are in their order, and NaN is above all.
  static Words largest_in_every_lane(const Vec (&p)[kVectors]) {
    Words top[2] = {Bytes::bits(p[0]), Bytes::bits(p[1])};
    for (int v = 2; v < kVectors; ++v) top[v % 2] = Bytes::larger(top[v % 2], Bytes::bits(p[v]));
    return Bytes::largest_lane(Bytes::larger(top[0], top[1]));
  }

  // kPassRows rows by the columns of a vector of the output. Returns what it has fetched.
  template <class Values, class Load>
  __attribute__((noinline)) static int add_block(const Values& values, const RowStates& state, int first_row,
                                                 const ValuePass& pass, const Words (&starts)[kRowBlock], Load load) {
    Words sums[kBytePlanes][kPassRows][4];
    unrolled<kBytePlanes * kPassRows * 4>([&](int i) __attribute__((always_inline)) {
      const int plane = i / (kPassRows * 4), r = i / 4 % kPassRows;
      sums[plane][r][i % 4] = Bytes::kOffsetsValues && plane == 1 ? starts[pass.row + r] : Bytes::set1(0);
    });
    const Weight* weights = values.weights + pass.row * kTileKeys;
    constexpr int kShare = Values::share(kPassRows, Bytes::kLanes);
    values.template for_each_key_group<4, kShare>(
        pass, [&](int key, const int8_t* const(&rows)[4]) __attribute__((always_inline)) {
          Bytes::Vector v[4] = {load(rows[0]), load(rows[1]), load(rows[2]), load(rows[3])};
          Bytes::interleave(v);
          for (int i = 0; i < 4; ++i) v[i] = Bytes::values(v[i]);
          for (int plane = 0; plane < kBytePlanes; ++plane) {
            for (int r = 0; r < kPassRows; ++r) {
              const auto p = Bytes::spread(weights + (plane * kRowBlock + r) * kTileKeys + key);
              for (int i = 0; i < 4; ++i) sums[plane][r][i] = Bytes::add_values(sums[plane][r][i], p, v[i]);
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

  // out = out * factor + sums * restore, back in the order of the columns.
  static void join_columns(const Words (&high)[4], const Words (&low)[4], float restore, float factor, float* out) {
    Bytes::Words columns[4] = {Bytes::join_planes(high[0], low[0]), Bytes::join_planes(high[1], low[1]),
                               Bytes::join_planes(high[2], low[2]), Bytes::join_planes(high[3], low[3])};
    Bytes::order_columns(columns);
    for (int i = 0; i < 4; ++i) {
      const Vec before = Simd::mul(Simd::load(out + i * kWidth), Simd::set1(factor));
      Simd::store(out + i * kWidth, Simd::fma(Bytes::to_float(columns[i]), Simd::set1(restore), before));
    }
  }
};

}  // namespace
}  // namespace rootdk::cpu
