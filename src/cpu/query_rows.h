#pragma once

// A call as the kernels see it: its score rule, and its rows with pointers into the caller's tensors.

#include "core/attention_call.h"
#include "cpu/kernel_table.h"

namespace rootdk::cpu {

ElementKind element_kind(DType dtype);

// Bias, masks and tables with their broadcast strides, ready to be pointed into. Made once a call.
class QueryRows {
 public:
  // Scores that are dot products, with what LogitParams adds to them.
  QueryRows(const AttentionShape& shape, const LogitParams& logits, double logit_scale, const KeyWindow& window);
  // The same with everything else that attention() has: other scores, masks, bias and dropout.
  QueryRows(const AttentionShape& shape, const AttentionParams& params, double logit_scale, const DropoutRule& dropout);

  const ScoreRule& rule() const { return rule_; }

  // Query i of head h of a sequence, all but q and out. Written in place: a row that is returned and then copied costs
  // short sequences several per cent.
  void set(QueryRow& row, const SequenceRange& range, std::int64_t sequence, std::int64_t head, std::int64_t i) const;

  // The logit of a head's sink in base 2; -infinity where there is none.
  double sink(std::int64_t head) const;

 private:
  // Whether scores go through more than a positive factor.
  bool transforms() const;

  KeyWindow window_;
  ConstTensorView alibi_slopes_, sinks_, relative_;
  ConstTensorView bias_, mask_, block_mask_, additive_v_;
  std::int64_t block_q_ = 0;
  TileOrigin origin_;
  ScoreRule rule_;
};

}  // namespace rootdk::cpu
