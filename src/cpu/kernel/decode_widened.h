#pragma once

// Products of the decode kernel in f32, on any target: cached elements are widened as they are loaded. Functions that
// hold a block of registers are not inlined: the allocator does better without what is around them. Included once per
// target: internal linkage.

#include "cpu/kernel/decode_prompt.h"
#include "cpu/kernel/decode_scores.h"
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

// e4m3 likewise. Its bits are shifted to where a float has them; the exponent is then 120 too small.
struct StoredE4m3 {
  using Type = uint8_t;
  static Vec load(const uint8_t* p) {
    float lanes[kWidth];
    for (int i = 0; i < kWidth; ++i) lanes[i] = widen(p[i]);
    return Simd::load(lanes);
  }
  static Vec load_first(const uint8_t* p, int n) {
    float lanes[kWidth] = {};
    for (int i = 0; i < n; ++i) lanes[i] = widen(p[i]);
    return Simd::load(lanes);
  }

 private:
  static float widen(uint8_t x) {
    if ((x & 0x7fu) == 0x7fu) return __builtin_nanf("");
    const uint32_t bits = (x & 0x80u) << 24 | (x & 0x7fu) << 20;
    float scaled;
    __builtin_memcpy(&scaled, &bits, sizeof scaled);
    return scaled * 0x1p120f;
  }
};

// Elements widened to f32, kWidth at a time.
template <class Stored, class Values = WidenOnce>
struct WidenedLanes : Values {
  using Element = typename Stored::Type;
  using Lane = float;
  using Vector = Vec;
  using Sum = Vec;
  using Order = Chains<1, Simd::kReduceDistances>;  // of store_sums
  static constexpr int kMaxPlanes = 1;
  static constexpr int kLanes = kWidth;

  static Vec load(const Element* p) { return Stored::load(p); }
  static Vec load_first(const Element* p, int n) { return Stored::load_first(p, n); }
  static Vec load_query(const float* p) { return Simd::load(p); }
  static Vec zero() { return Simd::zero(); }
  static Vec held(Vec x) { return x; }  // loaded once, where the compiler would load it for each use
  static Vec dot(Vec sum, Vec a, Vec b) { return Simd::fma(a, b, sum); }
  static void split(Vec x, Vec y, int, float* to, int) {
    Simd::store(to, x);
    Simd::store(to + kWidth, y);
  }
  static void store_sums(const Vec (&sums)[4][4], float* to, int stride) {
    for (int r = 0; r < 4; ++r) {
      for (int i = 0; i < 4; ++i) to[r * stride + i] = Simd::reduce_add(sums[r][i]);
    }
  }
};

// What PromptProduct multiplies: elements widened to f32.
template <class Given>
struct WidenedUnits {
  using Lanes = Given;
  using Element = typename Lanes::Element;
  using Lane = float;
  using Order = typename Lanes::Order;
  static constexpr int kUnit = 1;
  static constexpr int kMaxPlanes = 1;

  static Vec load(const Element* p, int n) { return n >= kWidth ? Lanes::load(p) : Lanes::load_first(p, n); }
  static Vec load_lanes(const float* p) { return Lanes::held(Simd::load(p)); }
  static Vec spread(const float* p) { return Simd::set1(*p); }
  static Vec dot(Vec sum, Vec a, Vec b) { return Simd::fma(a, b, sum); }

  // A row of values, or zeros, in panels.
  template <int kPanel>
  static void store_rows(const Element* const (&rows)[1], int value_dim, float* to, ptrdiff_t panel_stride) {
    for (int d = 0; d < round_up(value_dim, kPanel); d += kWidth) {
      const bool there = rows[0] && d < value_dim;
      Simd::store(to + d / kPanel * panel_stride + d % kPanel, there ? load(rows[0] + d, value_dim - d) : Simd::zero());
    }
  }
};

// Weighted sums of values that are widened to f32, on top of the scores of a target.
template <class Given>
struct WidenedProduct : FourKeyScores<Given> {
  using Lanes = Given;
  using Element = typename Lanes::Element;
  using Weight = float;
  using Query = typename FourKeyScores<Lanes>::Query;
  using Prompt = PromptProduct<WidenedUnits<Lanes>>;
  static constexpr int kWeightPlanes = 1;
  static constexpr int kPassRows = Lanes::kPassRows;
  static constexpr int kTileKeys = Lanes::kTileKeys;
  static constexpr int kValueVectors = kRowBlock / kPassRows * Simd::kPanelVectors;
  static constexpr int kValueColumns = kValueVectors * kWidth;

  // The weights of one row, [kTileKeys]: they stay what they are. Returns the factor that restores them.
  static float store_weights(const Query&, const Vec (&p)[kTileKeys / kWidth], float* weights, int) {
    for (int v = 0; v < kTileKeys / kWidth; ++v) Simd::store(weights + v * kWidth, p[v]);
    return 1.0f;
  }

  // out = out * factor + weights v for the rows of a block, which begins at first_row.
  template <class Values>
  static void add_values(const Query&, const Values& values, const RowStates& state, int first_row) {
    for_each_pass<kPassRows, kValueColumns, kWidth>(
        values.value_dim,
        [&](const ValuePass& pass) {
          return add_block<kValueVectors>(values, state, first_row, pass,
                                          [](const Element* p) { return Lanes::load(p); });
        },
        [&](const ValuePass& pass, int columns) {
          return add_block<1>(values, state, first_row, pass,
                              [columns](const Element* p) { return Lanes::load_first(p, columns); });
        });
  }

 private:
  // kPassRows rows by kVectors vectors of the output. Returns what it has fetched.
  template <int kVectors, class Values, class Load>
  __attribute__((noinline)) static int add_block(const Values& values, const RowStates& state, int first_row,
                                                 const ValuePass& pass, Load load) {
    Vec sums[kPassRows][kVectors];
    unrolled<kPassRows * kVectors>([&](int i) __attribute__((always_inline)) {
      sums[i / kVectors][i % kVectors] = Simd::zero();
    });
    const float* weights = values.weights + pass.row * kTileKeys;
    auto add = [&](int key, const Element* row) __attribute__((always_inline)) {
      Vec p[kPassRows];
      for (int r = 0; r < kPassRows; ++r) p[r] = Simd::set1(weights[r * kTileKeys + key]);
      for (int c = 0; c < kVectors; ++c) {
        const Vec v = load(row + c * kWidth);
        for (int r = 0; r < kPassRows; ++r) sums[r][c] = Simd::fma(p[r], v, sums[r][c]);
      }
    };
    constexpr int kShare = Values::share(kPassRows, kVectors * kWidth);
    values.template for_each_key_group<2, kShare>(
        pass, [&](int key, const Element* const(&rows)[2]) __attribute__((always_inline)) {
          add(key, rows[0]);
          add(key + 1, rows[1]);
        });
    float* rows = state.out + (first_row + pass.row) * state.out_stride + pass.column;
    unrolled<kPassRows * kVectors>([&](int i) __attribute__((always_inline)) {
      const int r = i / kVectors, c = i % kVectors;
      float* out = rows + r * state.out_stride + c * kWidth;
      Simd::store(out, Simd::fma(Simd::load(out), Simd::set1(values.factors[pass.row + r]), sums[r][c]));
    });
    return kShare;
  }
};

}  // namespace
}  // namespace rootdk::cpu
