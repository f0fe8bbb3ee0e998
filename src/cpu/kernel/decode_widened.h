#pragma once

// Products of the decode kernel in f32, on any target: cached elements are widened as they are loaded. Needs
// store_block_sums of the target. Included once per target: internal linkage.

#include "cpu/decode_table.h"
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

template <class Stored>
struct WidenedProduct {
  using Element = typename Stored::Type;
  using Weight = float;
  static constexpr int kWeightPlanes = 1;
  // Register blocks: 4 rows by as many vectors of values as the registers hold.
  static constexpr int kValueVectors = Simd::kPanelVectors;

  // Packed queries: [kRowBlock, head_dim padded].
  static int padded(int head_dim) { return round_up(head_dim, kWidth); }
  static size_t query_bytes(int head_dim) { return sizeof(float) * kRowBlock * padded(head_dim); }

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

  // scores[r * kTileKeys + i] = q_r . k_i for four keys.
  static void score(const Query& q, const Element* const (&keys)[4], int head_dim, float* scores) {
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
    store_block_sums(sums, scores, kTileKeys);
  }

  // The weights of one row, [kTileKeys]: they stay what they are. Returns the factor that restores them.
  static float store_weights(const Query&, const float* p, float* weights) {
    for (int t = 0; t < kTileKeys; t += kWidth) Simd::store(weights + t, Simd::load(p + t));
    return 1.0f;
  }

  // out = out * factor + weights v, in blocks of value_dim.
  template <class Values>
  static void add_values(const Query&, const Values& values, const RowStates& state, int first_row, int value_dim) {
    int d = 0;
    for (; d + kValueVectors * kWidth <= value_dim; d += kValueVectors * kWidth) {
      add_block<kValueVectors>(values, state, first_row, d, [](const Element* p) { return Stored::load(p); });
    }
    for (; d + kWidth <= value_dim; d += kWidth) {
      add_block<1>(values, state, first_row, d, [](const Element* p) { return Stored::load(p); });
    }
    if (d < value_dim) {
      const int left = value_dim - d;
      add_block<1>(values, state, first_row, d, [left](const Element* p) { return Stored::load_first(p, left); });
    }
  }

 private:
  template <int kVectors, class Values, class Load>
  static void add_block(const Values& values, const RowStates& state, int first_row, int d, Load load) {
    Vec sums[kRowBlock][kVectors];
    for (auto& row : sums) {
      for (Vec& sum : row) sum = Simd::zero();
    }
    values.for_each_key(d == 0, [&](int column, const Element* row) {
      Vec v[kVectors];
      for (int c = 0; c < kVectors; ++c) v[c] = load(row + d + c * kWidth);
      for (int r = 0; r < kRowBlock; ++r) {
        const Vec p = Simd::set1(values.weights[r * kTileKeys + column]);
        for (int c = 0; c < kVectors; ++c) sums[r][c] = Simd::fma(p, v[c], sums[r][c]);
      }
    });
    for (int r = 0; r < kRowBlock; ++r) {
      float* out = state.out + (first_row + r) * state.out_stride + d;
      const Vec factor = Simd::set1(values.factors[r]);
      for (int c = 0; c < kVectors; ++c) {
        Simd::store(out + c * kWidth, Simd::fma(Simd::load(out + c * kWidth), factor, sums[r][c]));
      }
    }
  }
};

}  // namespace
}  // namespace rootdk::cpu
