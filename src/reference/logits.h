#pragma once

// The logit of one query and one key: score, scale, softcap, position, bias and masks. Forward and backward share it.

#include <cstdint>

#include "core/attention_call.h"
#include "reference/doubles.h"

namespace rootdk::reference {

// What the logits of a call are made of, in double.
struct LogitInputs {
  AttentionShape shape;
  AttentionParams params;
  double logit_scale = 1.0;
  Doubles<4> q, k;                        // [batch, heads, q_len, head_dim], [batch, kv_heads, kv_len, head_dim]
  Doubles<4> bias;                        // [batch, heads, q_len, kv_len]
  Doubles<2> relative_table, additive_v;  // [heads, entries], [heads, head_dim]
  Doubles<1> alibi_slopes, sinks;         // [heads]
  Strided<const std::uint8_t, 4> mask, block_mask;

  LogitInputs(const AttentionShape& shape, const AttentionParams& params, double logit_scale, const ConstTensorView& q,
              const ConstTensorView& k);
};

// One query head of one sequence. Query i and key j count inside the sequence.
class HeadLogits {
 public:
  HeadLogits(const LogitInputs& inputs, std::int64_t sequence, std::int64_t head);

  // The logit, -inf where a mask drops the key. A key takes part in the softmax when its logit is above -inf (or NaN):
  // nothing else of a key that does not is ever read.
  double logit(std::int64_t i, std::int64_t j) const;

  double score(std::int64_t i, std::int64_t j) const;
  // The lengths that the cosine score divides by.
  double length_q(std::int64_t i) const;
  double length_k(std::int64_t j) const;

  // d logit(i, j) / d score(i, j).
  double logit_slope(std::int64_t i, std::int64_t j) const;

  // The logit of the sink: -inf where there is none.
  double sink() const;

  double q(std::int64_t i, std::int64_t d) const { return in_.q(range_.batch_entry, head_, range_.q_begin + i, d); }
  double k(std::int64_t j, std::int64_t d) const { return in_.k(range_.batch_entry, kv_head_, range_.kv_begin + j, d); }
  double additive_v(std::int64_t d) const { return in_.additive_v(head_, d); }

  std::int64_t distance(std::int64_t i, std::int64_t j) const { return range_.position(i) - j; }
  std::int64_t relative_entry(std::int64_t i, std::int64_t j) const;

  const SequenceRange& range() const { return range_; }
  std::int64_t sequence() const { return sequence_; }
  std::int64_t head() const { return head_; }
  std::int64_t kv_head() const { return kv_head_; }

 private:
  bool keeps(std::int64_t i, std::int64_t j) const;

  const LogitInputs& in_;
  std::int64_t sequence_, head_, kv_head_;
  SequenceRange range_;
};

}  // namespace rootdk::reference
