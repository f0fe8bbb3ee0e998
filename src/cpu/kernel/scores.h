#pragma once

// From scores to logits, row by row: softcap, position, bias and masks. A ScoreRow is one
// row of a score tile, in L1: row[t] belongs to key first_key + t, and `columns` is a whole number of vectors. Included
// once per target: internal linkage.

#include "cpu/kernel/load.h"
#include "cpu/kernel/math.h"

namespace rootdk::cpu {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();

struct ScoreRow {
  float* row;
  int64_t first_key;
  int keys;     // of the sequence
  int columns;  // keys rounded up; what lies beyond is masked at the end
};

inline void scale_scores(const ScoreRow& scores, const ScoreRule& rule) {
  if (rule.cap != 0.0f) {
    for (int t = 0; t < scores.columns; t += kWidth) {
      const Vec x = Simd::mul(Simd::load(scores.row + t), Simd::set1(rule.cap_scale));
      Simd::store(scores.row + t, Simd::mul(tanh(x), Simd::set1(rule.cap)));
    }
  } else {
    for (int t = 0; t < scores.columns; t += kWidth) {
      Simd::store(scores.row + t, Simd::mul(Simd::load(scores.row + t), Simd::set1(rule.scale)));
    }
  }
}

inline void add_constant(float* row, int begin, int end, float x) {
  for (int t = begin; t < end; ++t) row[t] += x;
}

inline void add_bias(const ScoreRow& scores, const ScoreRule& rule, const void* bias) {
  const Vec log2e = Simd::set1(kLog2E);
  with_stored(rule.bias_kind, [&](auto stored) {
    const auto* from = static_cast<const typename decltype(stored)::Type*>(bias) + scores.first_key * rule.bias_stride;
    if (rule.bias_stride == 1) {
      for (int t = 0; t < scores.keys; t += kWidth) {
        const int left = scores.keys - t;
        const Vec x = left >= kWidth ? stored.load(from + t) : stored.load_first(from + t, left);
        Simd::store(scores.row + t, Simd::fma(x, log2e, Simd::load(scores.row + t)));
      }
    } else {
      for (int t = 0; t < scores.keys; ++t) {
        scores.row[t] += element(from, t * rule.bias_stride, rule.bias_kind) * kLog2E;
      }
    }
  });
}

// Entry clamp(position - j + zero, 0, entries - 1): constant at both ends, one entry a key between.
inline void add_relative(const ScoreRow& scores, const ScoreRule& rule, const QueryRow& query) {
  const float* table = query.relative;
  const int64_t start = query.position + rule.relative_zero - scores.first_key;  // entry of column 0, before clamping
  const int64_t last = rule.relative_entries - 1;
  const int64_t far = start - last, near = start;  // columns up to far see the last entry, from near on entry 0
  const int first = far < 0 ? 0 : static_cast<int>(far < scores.keys ? far : scores.keys);
  const int second = near < first ? first : static_cast<int>(near < scores.keys ? near : scores.keys);
  add_constant(scores.row, 0, first, table[last * rule.relative_stride] * kLog2E);
  for (int t = first; t < second; ++t) scores.row[t] += table[(start - t) * rule.relative_stride] * kLog2E;
  add_constant(scores.row, second, scores.keys, table[0] * kLog2E);
}

inline void add_alibi(const ScoreRow& scores, const QueryRow& query) {
  const Vec slope = Simd::set1(-query.alibi_slope * kLog2E);
  const int64_t start = query.position - scores.first_key;
  for (int t = 0; t < scores.columns; t += kWidth) {
    const Vec distance = Simd::abs(Simd::sub(Simd::set1(static_cast<float>(start - t)), Simd::iota()));
    Simd::store(scores.row + t, Simd::fma(distance, slope, Simd::load(scores.row + t)));
  }
}

inline void fill_masked(float* row, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) row[t] = kMinusInfinity;
}

// Masked logits are replaced, never added to: whatever stood there, NaN included, is gone.
inline void mask_range(const ScoreRow& scores, const QueryRow& query) {
  const int64_t begin = query.key_begin - scores.first_key, end = query.key_end - scores.first_key;
  fill_masked(scores.row, 0, begin < scores.columns ? begin : scores.columns);
  fill_masked(scores.row, end > 0 ? end : 0, scores.columns);
}

inline void mask_elements(const ScoreRow& scores, const ScoreRule& rule, const uint8_t* mask) {
  const uint8_t* keep = mask + scores.first_key * rule.mask_stride;
  for (int t = 0; t < scores.keys; ++t) {
    if (!keep[t * rule.mask_stride]) scores.row[t] = kMinusInfinity;
  }
}

inline void mask_blocks(const ScoreRow& scores, const ScoreRule& rule, const uint8_t* blocks) {
  for (int t = 0; t < scores.keys;) {
    const int64_t block = (scores.first_key + t) / rule.block_keys;
    const int64_t block_end = (block + 1) * rule.block_keys - scores.first_key;
    const int end = block_end < scores.keys ? static_cast<int>(block_end) : scores.keys;
    if (!blocks[block * rule.block_mask_stride]) fill_masked(scores.row, t, end);
    t = end;
  }
}

// Everything between score and logit that is not the plain scale, before the masks.
inline void transform_scores(const ScoreRow& scores, const ScoreRule& rule, const QueryRow& query) {
  scale_scores(scores, rule);
  if (rule.has_alibi) add_alibi(scores, query);
  if (rule.has_relative) add_relative(scores, rule, query);
  if (rule.has_bias) add_bias(scores, rule, query.bias);
}

// The same with the masks.
inline void form_logits(const ScoreRow& scores, const ScoreRule& rule, const QueryRow& query) {
  if (rule.transforms) transform_scores(scores, rule, query);
  mask_range(scores, query);
  if (rule.has_mask) mask_elements(scores, rule, query.mask);
  if (rule.has_block_mask) mask_blocks(scores, rule, query.block_mask);
}

// scores [rows, columns] = sum over d of additive[d] tanh(q[d] + k[d]) on a panel of transposed keys [head_dim, panel].
inline void additive_scores(const QueryRow& query, int64_t stride, const float* q, const float* panel,
                            int panel_columns, int head_dim, int columns, float* scores) {
  for (int t = 0; t < columns; t += kWidth) {
    Vec sum = Simd::zero();
    for (int d = 0; d < head_dim; ++d) {
      const Vec k = Simd::load(panel + static_cast<ptrdiff_t>(d) * panel_columns + t);
      sum = Simd::fma(Simd::set1(query.additive[d * stride]), tanh(Simd::add(Simd::set1(q[d]), k)), sum);
    }
    Simd::store(scores + t, sum);
  }
}

}  // namespace
}  // namespace rootdk::cpu
