#pragma once

// The online softmax of sixteen rows at a time: their maxima, factors and sums are lanes of vectors, so that sixteen
// reductions are one. Pays where rows come by the dozen, as on AMX. Included once per target: internal linkage.

#include "cpu/kernel/softmax.h"

namespace rootdk::cpu {
namespace {

// Rows of scores, [rows, stride], of which `columns` count: a whole number of pairs of vectors.
struct ScoreRows {
  const float* data;
  ptrdiff_t stride;
  int rows, columns;
  float scale;  // x = score * scale - scaled maximum
};

class RowBatch {
 public:
  static constexpr int kRows = kWidth;

  // At most kRows rows; `first` is the number of the first in the state.
  RowBatch(const ScoreRows& scores, const RowStates& state, int first)
      : scores_(scores), state_(state), first_(first) {}

  // Moves the maxima of the state to those of these scores where they are larger; factors [rows] is what that leaves of
  // earlier sums. between() is called pauses(columns) times a row.
  template <bool kStats, class Between>
  void raise_maxima(float* factors, Between between) {
    for (int i = 0; i < scores_.rows; ++i) {
      Simd::store(lanes_[0][i], row_maxima(scores_.data + i * scores_.stride, between));
    }
    const Vec here = Simd::reduce_rows(lanes_[0], scores_.rows, [](Vec a, Vec b) { return Simd::max(a, b); });
    const Vec scale = Simd::set1(scores_.scale), none = Simd::set1(kMinusInfinity);
    const Vec before = load(state_.max), after = Simd::select_less(before, here, here, before);
    const Vec moved = Simd::sub(Simd::mul(before, scale), Simd::mul(after, scale));
    const Vec difference = Simd::select_less(before, here, moved, Simd::zero());  // not of two infinities
    const Vec factor = exp2(difference);
    if constexpr (kStats) {
      const Vec finite = Simd::select_less(Simd::zero(), factor, difference, Simd::zero());
      store(state_.weighted, Simd::mul(factor, Simd::add(load(state_.weighted), Simd::mul(finite, load(state_.sum)))));
      store(state_.squares, Simd::mul(load(state_.squares), Simd::mul(factor, factor)));
    }
    store(state_.sum, Simd::mul(load(state_.sum), factor));
    store(state_.max, after);
    Simd::store_first(factors, factor, scores_.rows);
    // A row that has seen no key yet gets weights of 2^-inf.
    Simd::store(maxima_, Simd::select_less(none, after, Simd::mul(after, scale), Simd::zero()));
  }

  // weights [rows, weight_stride] = 2^x through Weights::store_weights, and their sums join the state. between() is
  // called after each pair of vectors.
  template <class Weights, bool kStats, class Between>
  void exponentials(typename Weights::Element* weights, ptrdiff_t weight_stride, Between between) {
    for (int i = 0; i < scores_.rows; ++i)
      exponentials_of_row<Weights, kStats>(i, weights + i * weight_stride, between);
    add_to(state_.sum, 0);
    if constexpr (kStats) {
      add_to(state_.weighted, 1);
      add_to(state_.squares, 2);
    }
  }

  static int pauses(int columns) { return (columns + kPause - 1) / kPause; }

 private:
  static constexpr int kPause = 256;  // columns

  template <class Between>
  Vec row_maxima(const float* row, Between between) const {
    Vec first = Simd::load(row), second = Simd::load(row + kWidth);
    for (int begin = 0; begin < scores_.columns; begin += kPause) {
      for (int t = begin; t < smaller(begin + kPause, scores_.columns); t += kPairOfVectors) {
        first = Simd::max(first, Simd::load(row + t));
        second = Simd::max(second, Simd::load(row + t + kWidth));
      }
      between();
    }
    return Simd::max(first, second);
  }

  template <class Weights, bool kStats, class Between>
  void exponentials_of_row(int i, typename Weights::Element* weights, Between between) {
    const float* row = scores_.data + i * scores_.stride;
    const Vec factor = Simd::set1(scores_.scale), offset = Simd::set1(-maxima_[i]);
    Vec sum0 = Simd::zero(), sum1 = Simd::zero();
    Vec weighted0 = Simd::zero(), weighted1 = Simd::zero();
    Vec squares0 = Simd::zero(), squares1 = Simd::zero();
    for (int t = 0; t < scores_.columns; t += kPairOfVectors) {
      const Vec x0 = Simd::fma(Simd::load(row + t), factor, offset);
      const Vec x1 = Simd::fma(Simd::load(row + t + kWidth), factor, offset);
      const Vec p0 = Weights::exp2_of_score(x0), p1 = Weights::exp2_of_score(x1);
      sum0 = Simd::add(sum0, p0);
      sum1 = Simd::add(sum1, p1);
      if constexpr (kStats) {  // clamped, since 0 times -inf is to be 0
        weighted0 = Simd::fma(clamp_exponent(x0), p0, weighted0);
        weighted1 = Simd::fma(clamp_exponent(x1), p1, weighted1);
        squares0 = Simd::fma(p0, p0, squares0);
        squares1 = Simd::fma(p1, p1, squares1);
      }
      Weights::store_weights(weights + t, p0, p1);
      between();
    }
    Simd::store(lanes_[0][i], Simd::add(sum0, sum1));
    if constexpr (kStats) {
      Simd::store(lanes_[1][i], Simd::add(weighted0, weighted1));
      Simd::store(lanes_[2][i], Simd::add(squares0, squares1));
    }
  }

  void add_to(float* states, int which) const {
    const Vec sums = Simd::reduce_rows(lanes_[which], scores_.rows, [](Vec a, Vec b) { return Simd::add(a, b); });
    store(states, Simd::add(load(states), sums));
  }

  Vec load(const float* states) const { return Simd::load_first(states + first_, scores_.rows); }
  void store(float* states, Vec x) const { Simd::store_first(states + first_, x, scores_.rows); }

  const ScoreRows scores_;
  const RowStates& state_;
  const int first_;
  alignas(64) float lanes_[3][kRows][kWidth];  // of each row: parts of its maximum, then of its sums
  alignas(64) float maxima_[kRows];            // scaled
};

}  // namespace
}  // namespace rootdk::cpu
