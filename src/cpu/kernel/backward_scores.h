#pragma once

// From the scores and dP of one row to its weights and the gradients of its scores:
//     p = 2^(logit - lse);  ds = p (dP - D + g_lse - g_entropy (s - lse + H + p_sink))
// and what ds adds to the gradients of bias, relative table and slopes. Rows are ScoreRows as in scores.h. Included
// once per target: internal linkage.

#include "cpu/backward_table.h"
#include "cpu/kernel/dropout.h"
#include "cpu/kernel/scores.h"
#include "cpu/kernel/softmax.h"

namespace rootdk::cpu {
namespace {

// The exponential of a target's products. Rows have the same one with masks and without: which rows a mask cuts depends
// on where keys are cut, and results do not.
template <class Gemm>
inline Vec exponential_of(Vec x) {
  if constexpr (requires { Gemm::exponential(x); }) {
    return Gemm::exponential(x);
  } else {
    return exp2(x);
  }
}

// Both rows in place: scores become weights, dP becomes ds. Every key of the row is visible, and the logit is
// the score times the scale.
template <class Gemm>
inline void plain_gradient(float* scores, float* dp, int columns, const BackwardRow& row, float scale) {
  const Vec factor = Simd::set1(scale), offset = Simd::set1(-row.lse), dot = Simd::set1(row.dot);
  for (int t = 0; t < columns; t += kPairOfVectors) {
    const Vec p0 = exponential_of<Gemm>(Simd::fma(Simd::load(scores + t), factor, offset));
    const Vec p1 = exponential_of<Gemm>(Simd::fma(Simd::load(scores + t + kWidth), factor, offset));
    Simd::store(scores + t, p0);
    Simd::store(scores + t + kWidth, p1);
    Simd::store(dp + t, Simd::mul(p0, Simd::sub(Simd::load(dp + t), dot)));
    Simd::store(dp + t + kWidth, Simd::mul(p1, Simd::sub(Simd::load(dp + t + kWidth), dot)));
  }
}

// The same for masked rows: a weight of zero, which a mask leaves, is not multiplied by dP.
template <class Gemm>
inline void masked_gradient(float* logits, float* dp, int columns, const BackwardRow& row, float scale) {
  const Vec factor = Simd::set1(scale), offset = Simd::set1(-row.lse);
  const Vec dot = Simd::set1(row.dot + row.grad_entropy * row.entropy);
  const Vec entropy = Simd::set1(-row.grad_entropy * kLn2), lowest = Simd::set1(-150.0f);
  for (int t = 0; t < columns; t += kWidth) {
    const Vec x = Simd::fma(Simd::load(logits + t), factor, offset);
    const Vec p = exponential_of<Gemm>(x);
    const Vec inner = Simd::fma(entropy, clamp_exponent(x), Simd::sub(Simd::load(dp + t), dot));
    Simd::store(logits + t, p);
    Simd::store(dp + t, Simd::select_less(x, lowest, Simd::zero(), Simd::mul(p, inner)));
  }
}

// Dropped positions to zero, the others times `scale`.
inline void drop(float* row, int columns, const uint16_t* numbers, uint32_t threshold, float scale) {
  const Vec factor = Simd::set1(scale);
  for (int t = 0; t < columns; t += kWidth) {
    Simd::store(row + t, Simd::mul(Simd::keep_at_least(Simd::load(row + t), numbers + t, threshold), factor));
  }
}

// ds *= slope, where it is not zero: the slope of a masked score may be NaN.
inline void apply_slopes(float* ds, const float* slopes, int columns) {
  const Vec smallest = Simd::set1(0x1p-126f);
  for (int t = 0; t < columns; t += kWidth) {
    const Vec x = Simd::load(ds + t);
    const Vec product = Simd::mul(x, Simd::load(slopes + t));
    Simd::store(ds + t, Simd::select_less(Simd::abs(x), smallest, Simd::zero(), product));
  }
}

// to[t * stride] += row[t]
inline void add_row(float* to, int64_t stride, const float* row, int keys) {
  int t = 0;
  if (stride == 1) {
    for (; t + kWidth <= keys; t += kWidth) Simd::store(to + t, Simd::add(Simd::load(to + t), Simd::load(row + t)));
  }
  for (; t < keys; ++t) to[t * stride] += row[t];
}

inline float row_sum(const float* row, int begin, int end) {
  Vec sum = Simd::zero();
  int t = begin;
  for (; t + kWidth <= end; t += kWidth) sum = Simd::add(sum, Simd::load(row + t));
  if (t < end) sum = Simd::add(sum, Simd::load_first(row + t, end - t));
  return Simd::reduce_add(sum);
}

// Slope of the softcap, 1 - tanh^2, from capped scores cap tanh(x).
inline void cap_slopes(const float* capped, int columns, float cap, float* slopes) {
  const Vec inverse = Simd::set1(1.0f / cap), one = Simd::set1(1.0f);
  for (int t = 0; t < columns; t += kWidth) {
    const Vec tanh = Simd::mul(Simd::load(capped + t), inverse);
    Simd::store(slopes + t, Simd::mul(Simd::sub(one, tanh), Simd::add(one, tanh)));
  }
}

// Entry clamp(position - j + zero, 0, entries - 1) of the table, as in add_relative.
inline void add_relative_gradient(const ScoreRow& ds, const ScoreRule& rule, const QueryRow& query, double* table) {
  const int64_t start = query.position + rule.relative_zero - ds.first_key, last = rule.relative_entries - 1;
  auto bounded = [&](int64_t t) { return static_cast<int>(t < 0 ? 0 : (t < ds.keys ? t : ds.keys)); };
  const int first = bounded(start - last), second = first > bounded(start) ? first : bounded(start);
  table[last] += row_sum(ds.row, 0, first);
  for (int t = first; t < second; ++t) table[start - t] += ds.row[t];
  table[0] += row_sum(ds.row, second, ds.keys);
}

inline double alibi_gradient(const ScoreRow& ds, const QueryRow& query) {
  Vec sum = Simd::zero();
  const int64_t start = query.position - ds.first_key;
  for (int t = 0; t < ds.columns; t += kWidth) {
    const Vec distance = Simd::abs(Simd::sub(Simd::set1(static_cast<float>(start - t)), Simd::iota()));
    sum = Simd::fma(distance, Simd::load(ds.row + t), sum);
  }
  return -static_cast<double>(Simd::reduce_add(sum));
}

// What ds adds to the parameters of the logits.
inline void add_parameter_gradients(const ScoreRow& ds, const BackwardTile& tile, const BackwardRow& row) {
  if (row.bias) add_row(row.bias + ds.first_key * tile.bias_stride, tile.bias_stride, ds.row, ds.keys);
  if (row.bias_sum) *row.bias_sum += row_sum(ds.row, 0, ds.keys);
  if (row.relative) add_relative_gradient(ds, *tile.rule, row.query, row.relative);
  if (row.alibi) *row.alibi += alibi_gradient(ds, row.query);
}

// Scores and dP of a row that needs more than scale and exponential. slopes and numbers have room for a row.
template <class Gemm>
inline void special_gradient(const ScoreRow& scores, float* dp, const BackwardTile& tile, const BackwardRow& row,
                             float* slopes, uint16_t* numbers) {
  const ScoreRule& rule = *tile.rule;
  if (rule.cap != 0.0f) {
    scale_scores(scores, rule);
    cap_slopes(scores.row, scores.columns, rule.cap, slopes);
    ScoreRule capped = rule;
    capped.cap = 0.0f;
    capped.scale = 1.0f;
    form_logits(scores, capped, row.query);
  } else {
    form_logits(scores, rule, row.query);
  }
  if (rule.dropout_threshold) {
    const DropoutCounter counter{rule.dropout_seed, row.query.query, row.query.head, row.query.batch};
    dropout_numbers(counter, rule.dropout_first_key + scores.first_key, scores.columns, numbers);
    drop(dp, scores.columns, numbers, rule.dropout_threshold, tile.dropout_scale);
  }
  masked_gradient<Gemm>(scores.row, dp, scores.columns, row, rule.transforms ? 1.0f : rule.scale);
  if (row.column_mass) {
    add_row(row.column_mass + scores.first_key * tile.mass_stride, tile.mass_stride, scores.row, scores.keys);
  }
  if (rule.dropout_threshold) {
    drop(scores.row, scores.columns, numbers, rule.dropout_threshold, tile.dropout_scale);
  }
  add_parameter_gradients({dp, scores.first_key, scores.keys, scores.columns}, tile, row);
  if (rule.cap != 0.0f) apply_slopes(dp, slopes, scores.columns);
}

}  // namespace
}  // namespace rootdk::cpu
