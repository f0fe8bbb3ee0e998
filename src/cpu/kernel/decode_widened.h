#pragma once

// Products of the decode kernel in f32, on any target: cached elements are widened as they are loaded. Functions that
// hold a block of registers are not inlined: the allocator does better without what is around them. Included once per
// target: internal linkage.

#include "cpu/kernel/decode_tile.h"
#include "cpu/kernel/load.h"

namespace rootdk::cpu {
namespace {

// int8 as a stored type; its scales are folded into scores and weights by the kernel.
struct StoredInt8 {
  using Type = int8_t;
  static Vec load(const int8_t* p) {
    float lanes[kWidth];
    for (int i = 0; i < kWidth; ++i) lanes[i] = static_cast<float>(p[i]);
    return Simd::load(lanes);
  }
  static Vec load_first(const int8_t* p, int n) {
    float lanes[kWidth] = {};
    for (int i = 0; i < n; ++i) lanes[i] = static_cast<float>(p[i]);
    return Simd::load(lanes);
  }
};

// Scores of four keys at a time, lanes along head_dim.
template <class Stored>
struct FourKeyScores {
  using Element = typename Stored::Type;

  // Packed queries: [kRowBlock, head_dim padded].
  static int padded(int head_dim) { return round_up(head_dim, kWidth); }
  static size_t query_bytes(int head_dim) { return sizeof(float) * kRowBlock * static_cast<size_t>(padded(head_dim)); }

  struct Query {
    const float* rows;
    float scales[kRowBlock];
  };

  static Query pack(const float* q, int rows, int head_dim, bool, void* packed) {
    const int stride = padded(head_dim);
    auto* to = static_cast<float*>(packed);
    for (int i = 0; i < kRowBlock * stride; ++i) to[i] = 0.0f;
    for (int r = 0; r < rows; ++r) {
      for (int d = 0; d < head_dim; ++d) to[r * stride + d] = q[r * head_dim + d];
    }
    return {to, {1.0f, 1.0f, 1.0f, 1.0f}};
  }

  // scores[r * kTileKeys + i] = q_r . k_i for the keys of a group, rounded up to a multiple of 4.
  __attribute__((noinline)) static void score(const Query& q, const GroupKeys<Element>& group, int head_dim,
                                              float* scores) {
    const Element* k = group.first;
    const int keys = group.keys;
    for (int t = 0; t < keys; t += 4) {
      group.fetch(t, 4, head_dim);
      // Beyond the last key stands the last key again: the columns are masked, the memory is there.
      const Element* const four[4] = {k + t * head_dim, k + smaller(t + 1, keys - 1) * head_dim,
                                      k + smaller(t + 2, keys - 1) * head_dim, k + smaller(t + 3, keys - 1) * head_dim};
      score_four(q, four, head_dim, scores + t);
    }
  }

 private:
  static void score_four(const Query& q, const Element* const (&keys)[4], int head_dim, float* scores) {
    const int stride = padded(head_dim);
    Vec sums[4][4];
    for (auto& row : sums) {
      for (Vec& sum : row) sum = Simd::zero();
    }
    auto step = [&](int d, auto load) {
      Vec k[4];
      for (int i = 0; i < 4; ++i) k[i] = load(keys[i] + d);
      for (int r = 0; r < kRowBlock; ++r) {
        const Vec x = Simd::load(q.rows + r * stride + d);
        for (int i = 0; i < 4; ++i) sums[r][i] = Simd::fma(x, k[i], sums[r][i]);
      }
    };
    int d = 0;
    for (; d + kWidth <= head_dim; d += kWidth) step(d, [](const Element* p) { return Stored::load(p); });
    if (d < head_dim) step(d, [&](const Element* p) { return Stored::load_first(p, head_dim - d); });
    for (int r = 0; r < kRowBlock; ++r) {
      for (int i = 0; i < 4; ++i) scores[r * kTileKeys + i] = Simd::reduce_add(sums[r][i]);
    }
  }
};

// Weighted sums of values that are widened to f32, on top of the scores of a target.
template <class Stored, class Scores>
struct WidenedProduct : Scores {
  using Element = typename Stored::Type;
  using Weight = float;
  using Query = typename Scores::Query;
  static constexpr int kWeightPlanes = 1;
  static constexpr int kValueVectors = 2 * Simd::kPanelVectors;
  static constexpr int kValueColumns = kValueVectors * kWidth;

  // The weights of one row, [kTileKeys]: they stay what they are. Returns the factor that restores them.
  static float store_weights(const Query&, const float* p, float* weights) {
    for (int t = 0; t < kTileKeys; t += kWidth) Simd::store(weights + t, Simd::load(p + t));
    return 1.0f;
  }

  // out = out * factor + weights v, in blocks of value_dim.
  template <class Values>
  static void add_values(const Query&, const Values& values, const RowStates& state, int first_row, int value_dim) {
    auto whole = [](const Element* p) { return Stored::load(p); };
    for (int r = 0; r < kRowBlock; r += kPassRows) {
      int d = 0;
      for (; d + kValueColumns <= value_dim; d += kValueColumns) {
        add_block<kValueVectors>(values, state, {first_row, r, d}, whole);
      }
      for (; d + kWidth <= value_dim; d += kWidth) add_block<1>(values, state, {first_row, r, d}, whole);
      if (const int left = value_dim - d; left > 0) {
        add_block<1>(values, state, {first_row, r, d},
                     [left](const Element* p) { return Stored::load_first(p, left); });
      }
    }
  }

 private:
  // 2 rows by kVectors vectors of the output.
  template <int kVectors, class Values, class Load>
  __attribute__((noinline)) static void add_block(const Values& values, const RowStates& state, BlockOrigin at,
                                                  Load load) {
    Vec sums[kPassRows][kVectors];
    for (auto& row : sums) {
      for (Vec& sum : row) sum = Simd::zero();
    }
    const float* weights = values.weights + at.row * kTileKeys;
    auto add = [&](int column, const Element* row) {
      Vec p[kPassRows];
      for (int r = 0; r < kPassRows; ++r) p[r] = Simd::set1(weights[r * kTileKeys + column]);
      for (int c = 0; c < kVectors; ++c) {
        const Vec v = load(row + c * kWidth);
        for (int r = 0; r < kPassRows; ++r) sums[r][c] = Simd::fma(p[r], v, sums[r][c]);
      }
    };
    values.template for_each_pair<kVectors * kWidth>(at, [&](int column, const Element* row, const Element* next) {
      add(column, row);
      if (next != row) add(column + 1, next);
    });
    for (int r = 0; r < kPassRows; ++r) {
      float* out = state.out + (at.first_row + at.row + r) * state.out_stride + at.column;
      const Vec factor = Simd::set1(values.factors[at.row + r]);
      for (int c = 0; c < kVectors; ++c) {
        Simd::store(out + c * kWidth, Simd::fma(Simd::load(out + c * kWidth), factor, sums[r][c]));
      }
    }
  }
};

}  // namespace
}  // namespace rootdk::cpu
