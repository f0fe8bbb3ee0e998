#pragma once

// From a score to a logit, on the device: scale, softcap, position, bias, masks. LogitRule holds the whole call's rule
// and is passed to kernels by value; HeadRule is the same rule for one head of one sequence.

#include <cmath>
#include <cstdint>

#include "cuda/common/device_view.h"
#include "cuda/common/philox.h"

namespace rootdk::cuda {

// [begin, end) of rows or keys; empty where end <= begin.
struct Range {
  int begin = 0, end = 0;
  __device__ bool empty() const { return end <= begin; }
};

// One sequence of the batch; the device's SequenceRange (core/attention_call.h).
struct Sequence {
  int index = 0;  // of the sequence: counts for dropout and per-sequence workspace
  int entry = 0;  // index into dimension 0 of the tensors: 0 for packed sequences
  int q_begin = 0, q_len = 0;
  int kv_begin = 0, kv_len = 0;
  int kv_visible = 0;  // kv_len cut by kv_lengths

  __device__ int shift() const { return kv_len - q_len; }  // position of query 0
};

struct LogitRule {
  // Sizes; upper bounds for packed sequences.
  int batch = 0, heads = 0, kv_heads = 0, q_len = 0, kv_len = 0, head_dim = 0, value_dim = 0;

  float scale = 1.0f;    // scale / temperature
  float softcap = 0.0f;  // 0: none
  bool causal = false;
  int window_left = -1, window_right = -1;  // -1: no limit

  DeviceView<const int, 1> kv_lengths, q_starts, kv_starts;
  DeviceView<const unsigned char, 4> mask, block_mask;  // 0 drops; broadcast dimensions have stride 0
  int block_q = 1, block_kv = 1;

  AnyView<4> bias;  // broadcast dimensions have stride 0
  DeviceView<const float, 2> relative_table;
  int relative_entries = 0, relative_zero = 0;
  DeviceView<const float, 1> alibi_slopes, sinks;
  DeviceView<const float, 2> additive_v;

  // Cosine score: 1 / |q| and 1 / |k| of every row (0 for zero rows), [tensor batch, heads, rows]. Null: dot.
  DeviceView<const float, 3> q_inverse_norm, k_inverse_norm;

  DropoutBits dropout;

  __host__ __device__ int group() const { return heads / kv_heads; }
  // Anything that changes logits beyond the scale and the ranges of causal, window and length.
  __device__ bool plain_logits() const {
    return softcap == 0.0f && !mask && !block_mask && !bias && !relative_table && !alibi_slopes && !q_inverse_norm;
  }

  __device__ Sequence sequence(int index) const {
    Sequence s;
    s.index = index;
    if (q_starts) {
      s.q_begin = q_starts(index);
      s.q_len = q_starts(index + 1) - s.q_begin;
      s.kv_begin = kv_starts(index);
      s.kv_len = s.kv_visible = kv_starts(index + 1) - s.kv_begin;
    } else {
      s.entry = index;
      s.q_len = q_len;
      s.kv_len = kv_len;
      s.kv_visible = kv_lengths ? min(max(kv_lengths(index), 0), kv_len) : kv_len;
    }
    return s;
  }

  // The keys that query i sees under causal masking, window and length.
  __device__ Range keys_of(const Sequence& s, int i) const { return keys_of({i, i + 1}, s); }
  // The same for any of the queries in `rows`.
  __device__ Range keys_of(Range rows, const Sequence& s) const {
    const int first = rows.begin + s.shift(), last = rows.end - 1 + s.shift();
    Range keys{0, s.kv_visible};
    if (causal) keys.end = min(keys.end, last + 1);
    if (window_right >= 0) keys.end = min(keys.end, last + window_right + 1);
    if (window_left >= 0) keys.begin = max(0, first - window_left);
    return keys;
  }
  // The queries that may see any of the keys in `keys`.
  __device__ Range queries_of(Range keys, const Sequence& s) const {
    if (keys.begin >= s.kv_visible) return {0, 0};
    const int last = min(keys.end, s.kv_visible) - 1;
    Range rows{0, s.q_len};
    if (causal) rows.begin = max(rows.begin, keys.begin - s.shift());
    if (window_right >= 0) rows.begin = max(rows.begin, keys.begin - window_right - s.shift());
    if (window_left >= 0) rows.end = min(rows.end, last + window_left - s.shift() + 1);
    return rows;
  }
  // Whether every query of `rows` exists and sees every key of `keys` under causal masking, window and length.
  __device__ bool ranges_keep(Range rows, Range keys, const Sequence& s) const {
    const int first = rows.begin + s.shift(), last = rows.end - 1 + s.shift();
    return rows.end <= s.q_len && keys.end <= s.kv_visible && (!causal || keys.end <= first + 1) &&
           (window_right < 0 || keys.end <= first + window_right + 1) &&
           (window_left < 0 || keys.begin >= last - window_left);
  }
};

// The rule for one head of one sequence: pointers resolved, small per-head values loaded once.
struct HeadRule {
  const LogitRule& rule;
  Sequence sequence;
  int head = 0;
  bool plain = false;  // no per-element features beside the ranges
  float alibi_slope = 0.0f;

  __device__ HeadRule(const LogitRule& all, const Sequence& s, int h)
      : rule(all), sequence(s), head(h), plain(all.plain_logits()) {
    if (rule.alibi_slopes) alibi_slope = rule.alibi_slopes(head);
  }

  // Whether query i sees key j under causal masking, window and length. Tiles may include rows and keys past the end of
  // the sequence; these are out of range. Call this before loading from any tensor at (i, j).
  __device__ bool in_range(int i, int j) const {
    const Range keys = rule.keys_of(sequence, i);
    return i < sequence.q_len && j >= keys.begin && j < keys.end;
  }
  __device__ bool mask_keeps(int i, int j) const { return rule.mask(sequence.entry, head, i, j) != 0; }
  __device__ bool block_mask_keeps(int i, int j) const {
    return rule.block_mask(sequence.entry, head, i / rule.block_q, j / rule.block_kv) != 0;
  }
  __device__ bool keeps(int i, int j) const {
    return in_range(i, j) && (!rule.mask || mask_keeps(i, j)) && (!rule.block_mask || block_mask_keeps(i, j));
  }

  // Whether the block mask drops the whole tile. Checks a few blocks at most: if the mask is finer, the answer is "no".
  __device__ bool block_mask_drops(Range rows, Range keys) const {
    if (!rule.block_mask) return false;
    constexpr int kMostBlocks = 16;
    const int q_first = rows.begin / rule.block_q, q_last = (rows.end - 1) / rule.block_q;
    const int kv_first = keys.begin / rule.block_kv, kv_last = (keys.end - 1) / rule.block_kv;
    if ((q_last - q_first + 1) * (kv_last - kv_first + 1) > kMostBlocks) return false;
    for (int bq = q_first; bq <= q_last; ++bq) {
      for (int bk = kv_first; bk <= kv_last; ++bk) {
        if (rule.block_mask(sequence.entry, head, bq, bk) != 0) return false;
      }
    }
    return true;
  }

  // 1 / (|q_i| |k_j|) for the cosine score, 1 otherwise.
  __device__ float norm_factor(int i, int j) const {
    if (!rule.q_inverse_norm) return 1.0f;
    return rule.q_inverse_norm(sequence.entry, head, sequence.q_begin + i) *
           rule.k_inverse_norm(sequence.entry, head / rule.group(), sequence.kv_begin + j);
  }

  // What the relative table, ALiBi and the bias add to the logit; each only where it is given.
  __device__ int distance(int i, int j) const { return i + sequence.shift() - j; }
  __device__ float table_value(int i, int j) const {
    return rule.relative_table(head, min(max(distance(i, j) + rule.relative_zero, 0), rule.relative_entries - 1));
  }
  __device__ float alibi_value(int i, int j) const { return -alibi_slope * static_cast<float>(abs(distance(i, j))); }
  __device__ float bias_value(int i, int j) const {
    return load_as_float(rule.bias.data, rule.bias.dtype, rule.bias.offset(sequence.entry, head, i, j));
  }

  // The logit of query i and key j from their raw score (for the cosine score: from q . k); no mask applied.
  __device__ float unmasked(float raw, int i, int j) const {
    float logit = raw * rule.scale * norm_factor(i, j);
    if (rule.softcap != 0.0f) logit = rule.softcap * tanhf(logit / rule.softcap);
    if (rule.relative_table) logit += table_value(i, j);
    if (rule.alibi_slopes) logit += alibi_value(i, j);
    if (rule.bias) logit += bias_value(i, j);
    return logit;
  }

  // -inf if a mask drops the key. The raw score of a dropped key is not used: it may be NaN.
  __device__ float logit(float raw, int i, int j) const { return keeps(i, j) ? unmasked(raw, i, j) : -INFINITY; }
};

}  // namespace rootdk::cuda
