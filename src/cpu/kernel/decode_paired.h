#pragma once

// Products of the decode kernel over pairs of bf16 numbers (Pairs in simd/pairs_*.h). Scores pair neighbours in
// head_dim, as rows are stored; weighted sums pair two keys, whose rows are interleaved in registers. Included once per
// target: internal linkage.

#include "cpu/kernel/decode_prompt.h"
#include "cpu/kernel/decode_scores.h"

namespace rootdk::cpu {
namespace {

constexpr int kPairedLanes = Pairs::kLanes;

// Short vectors are interleaved once for all four rows: memory is not the limit there.
template <int kLanes>
struct ValuesOfPairs : InOrder {};
template <>
struct ValuesOfPairs<8> : WidenOnce {};

// bf16 times bf16. Queries and weights that are no bf16 numbers are split into two: x = high + low to 16 bits.
struct Bf16Pairs : ValuesOfPairs<kPairedLanes> {
  using Element = uint16_t;
  using Lane = uint16_t;
  using Vector = Pairs::Vector;
  using Sum = Vec;
  static constexpr int kMaxPlanes = 2;
  static constexpr int kLanes = kPairedLanes;

  static Vector load(const uint16_t* p) { return Pairs::load(p); }
  static Vector load_first(const uint16_t* p, int n) { return Pairs::load_first(p, n); }
  static Sum zero() { return Simd::zero(); }
  static Sum dot(Sum sum, Vector a, Vector b) { return Pairs::dot(sum, a, b); }
  static void store_sums(const Sum (&sums)[4][4], float* to, int stride) { Pairs::store_sums(sums, to, stride); }

  // Two neighbours, a pair of weights, in every lane.
  static Vector pair_of(const uint16_t* p) { return Pairs::spread(p); }

  static Vector load_query(const uint16_t* p) { return Pairs::load(p); }
  // Two vectors of floats as kLanes lanes a plane.
  static void split(Vec x, Vec y, int planes, uint16_t* to, int plane_stride) {
    for (int plane = 0; plane < planes; ++plane) {
      const Vector rounded = Pairs::round(x, y);
      Pairs::store(to + plane * plane_stride, rounded);
      if (plane + 1 == planes) break;
      x = Simd::sub(x, Pairs::widen_first(rounded));
      y = Simd::sub(y, Pairs::widen_second(rounded));
    }
  }

  // What the values of two keys are before they are interleaved, and vectors of pairs after it.
  using Stored = Vector;
  static constexpr int kPairVectors = 2;
  static Stored load_values(const uint16_t* p) { return load(p); }
  static Stored load_first_values(const uint16_t* p, int n) { return load_first(p, n); }
  static void interleave(Stored a, Stored b, Vector (&pairs)[kPairVectors]) { Pairs::interleave(a, b, pairs); }
};

// What PromptProduct multiplies: pairs of bf16 numbers. Load makes kPairedLanes of them from elements of a cache, of
// which `n` are there.
template <class Given, class Sums, class Load>
struct PairedUnits {
  using Lanes = Given;
  using Element = typename Lanes::Element;
  using Lane = uint16_t;
  using Order = Sums;
  using Vector = Pairs::Vector;
  static constexpr int kUnit = 2;
  static constexpr int kMaxPlanes = Bf16Pairs::kMaxPlanes;

  static Vec load(const Element* p, int n) { return Pairs::as_floats(n > 0 ? Load::load(p, n) : Vector{}); }
  static Vector load_lanes(const uint16_t* p) { return Pairs::load(p); }
  static Vector spread(const uint16_t* p) { return Bf16Pairs::pair_of(p); }
  static Vec dot(Vec sum, Vector a, Vector b) { return Bf16Pairs::dot(sum, a, b); }

  // Two rows of values, or zeros, side by side in panels.
  template <int kPanel>
  static void store_rows(const Element* const (&rows)[2], int value_dim, uint16_t* to, ptrdiff_t panel_stride) {
    const Pairs::InOrder order;
    for (int d = 0; d < round_up(value_dim, kPanel); d += kPairedLanes) {
      Vector x[2];
      for (int i = 0; i < 2; ++i) {
        x[i] = rows[i] && d < value_dim ? Load::load(rows[i] + d, value_dim - d) : Vector{};
      }
      uint16_t* at = to + d / kPanel * panel_stride + d % kPanel * 2;
      Pairs::store(at, order.first(x[0], x[1]));
      Pairs::store(at + kPairedLanes, order.second(x[0], x[1]));
    }
  }
};

struct LoadBf16 {
  static Pairs::Vector load(const uint16_t* p, int n) {
    return n >= kPairedLanes ? Bf16Pairs::load(p) : Bf16Pairs::load_first(p, n);
  }
};

// Weights as pairs of bf16 numbers, for a Product that adds values with them (`add_planes`).
template <class Product, int kTileKeys>
struct PairedWeights {
  using Weight = Bf16Pairs::Lane;
  static constexpr int kWeightPlanes = Bf16Pairs::kMaxPlanes;

  // The weights of one row, [kTileKeys] in each plane. Returns the factor that restores them.
  template <class Query>
  static float store_weights(const Query& q, const Vec (&p)[kTileKeys / kWidth], Weight* weights, int plane_stride) {
    for (int v = 0; v < kTileKeys / kWidth; v += 2) {
      Bf16Pairs::split(p[v], p[v + 1], q.planes, weights + v * kWidth, plane_stride);
    }
    return 1.0f;
  }

  // out = out * factor + weights v for the rows of a block, which begins at first_row.
  template <class Query, class Values>
  static void add_values(const Query& q, const Values& values, const RowStates& state, int first_row) {
    q.planes == 1 ? Product::template add_planes<1>(values, state, first_row)
                  : Product::template add_planes<2>(values, state, first_row);
  }
};

// Lanes says how elements become pairs, Load the same for a prompt.
template <class Given, class Load>
struct PairedProduct : FourKeyScores<Given>, PairedWeights<PairedProduct<Given, Load>, Given::kTileKeys> {
  using Lanes = Given;
  using Element = typename Lanes::Element;
  using Sum = typename Lanes::Sum;
  using Weight = Bf16Pairs::Lane;
  using Prompt = PromptProduct<PairedUnits<Lanes, Chains<1, Pairs::kSumDistances>, Load>>;
  static constexpr int kTileKeys = Lanes::kTileKeys;
  static constexpr int kPassRows = Lanes::kPassRows;
  static constexpr int kValueColumns = kRowBlock / kPassRows * 2 * kPairedLanes;

  template <int kPlanes, class Values>
  static void add_planes(const Values& values, const RowStates& state, int first_row) {
    // Short rows of values are not read in order, but are interleaved once for all rows.
    values.value_dim < kValueColumns ? add_passes<kPlanes, kRowBlock>(values, state, first_row)
                                     : add_passes<kPlanes, kPassRows>(values, state, first_row);
  }

 private:
  static constexpr int kLanes = Lanes::kLanes;

  // kRows rows by as many columns as there are registers for.
  template <int kPlanes, int kRows, class Values>
  static void add_passes(const Values& values, const RowStates& state, int first_row) {
    constexpr int kColumns = kRowBlock / kRows * 2 * kPairedLanes;
    for_each_pass<kRows, kColumns, kLanes>(
        values.value_dim,
        [&](const ValuePass& pass) {
          return add_block<kPlanes, kRows, kColumns / kLanes>(values, state, first_row, pass,
                                                              [](const Element* p) { return Lanes::load_values(p); });
        },
        [&](const ValuePass& pass, int columns) {
          return add_block<kPlanes, kRows, 1>(values, state, first_row, pass, [columns](const Element* p) {
            return Lanes::load_first_values(p, columns);
          });
        });
  }

  // kRows rows by kBlocks vectors of columns of the output.
  template <int kPlanes, int kRows, int kBlocks, class Values, class LoadValues>
  __attribute__((noinline)) static int add_block(const Values& values, const RowStates& state, int first_row,
                                                 const ValuePass& pass, LoadValues load) {
    constexpr int kVectors = Lanes::kPairVectors;
    Sum sums[kRows][kBlocks][kVectors];
    unrolled<kRows * kBlocks * kVectors>([&](int i) __attribute__((always_inline)) {
      sums[i / kVectors / kBlocks][i / kVectors % kBlocks][i % kVectors] = Lanes::zero();
    });
    const Weight* weights = values.weights + pass.row * kTileKeys;
    constexpr int kShare = Values::share(kRows, kBlocks * kLanes);
    values.template for_each_key_group<2, kShare>(
        pass, [&](int key, const Element* const(&rows)[2]) __attribute__((always_inline)) {
          Pairs::Vector p[kPlanes][kRows];
          for (int plane = 0; plane < kPlanes; ++plane) {
            for (int r = 0; r < kRows; ++r)
              p[plane][r] = Bf16Pairs::pair_of(weights + (plane * kRowBlock + r) * kTileKeys + key);
          }
          for (int c = 0; c < kBlocks; ++c) {
            Pairs::Vector pairs[kVectors];
            Lanes::interleave(load(rows[0] + c * kLanes), load(rows[1] + c * kLanes), pairs);
            for (int plane = 0; plane < kPlanes; ++plane) {
              for (int r = 0; r < kRows; ++r) {
                for (int i = 0; i < kVectors; ++i) {
                  sums[r][c][i] = Bf16Pairs::dot(sums[r][c][i], p[plane][r], pairs[i]);
                }
              }
            }
          }
        });
    float* out = state.out + (first_row + pass.row) * state.out_stride + pass.column;
    unrolled<kRows * kBlocks>([&](int i) __attribute__((always_inline)) {
      const int r = i / kBlocks, c = i % kBlocks;
      Pairs::join(sums[r][c], values.factors[pass.row + r], out + r * state.out_stride + c * kLanes);
    });
    return kShare;
  }
};

using Bf16Product = PairedProduct<Bf16Pairs, LoadBf16>;

}  // namespace
}  // namespace rootdk::cpu
