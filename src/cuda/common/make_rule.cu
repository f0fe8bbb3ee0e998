#include "cuda/common/make_rule.h"

#include <algorithm>
#include <sstream>

namespace rootdk::cuda {
namespace {

// Sums of two positions, a window and a table offset stay below 2^31 when each is below this.
constexpr std::int64_t kLargestPosition = std::int64_t{1} << 28;

// A window that covers every position is no window.
int window_limit(std::int64_t keys, const AttentionShape& shape) {
  return keys >= shape.q_len + shape.kv_len ? -1 : static_cast<int>(keys);
}

int small(std::int64_t value) { return static_cast<int>(value); }

}  // namespace

std::string refuse_sizes(const AttentionShape& shape, const AttentionParams& params) {
  const std::int64_t entries = params.logits.relative_table.defined() ? params.logits.relative_table.size(1) : 0;
  if (std::max({shape.q_len, shape.kv_len, entries}) < kLargestPosition) return {};
  std::ostringstream reason;  // every call asks: only a refusal is put into words
  if (shape.q_len >= kLargestPosition || shape.kv_len >= kLargestPosition) {
    reason << "q_len " << shape.q_len << " or kv_len " << shape.kv_len << " is not below " << kLargestPosition;
  } else {
    reason << "relative_table has " << entries << " entries, not below " << kLargestPosition;
  }
  return reason.str();
}

LogitRule make_rule(const AttentionShape& shape, const LogitParams& logits, double logit_scale,
                    const KeyWindow& window) {
  LogitRule rule;
  rule.batch = small(shape.batch);
  rule.heads = small(shape.heads);
  rule.kv_heads = small(shape.kv_heads);
  rule.q_len = small(shape.q_len);
  rule.kv_len = small(shape.kv_len);
  rule.head_dim = small(shape.head_dim);
  rule.value_dim = small(shape.value_dim);
  rule.scale = static_cast<float>(logit_scale);
  rule.softcap = static_cast<float>(logits.softcap);
  rule.causal = window.causal;
  rule.window_left = window_limit(window.left, shape);
  rule.window_right = window_limit(window.right, shape);
  rule.relative_table = broadcast_view<const float, 2>(logits.relative_table);
  if (logits.relative_table.defined()) {
    rule.relative_entries = small(logits.relative_table.size(1));
    rule.relative_table.strides[1] = logits.relative_table.stride(1);
    rule.relative_zero = small(logits.relative_zero);
  }
  rule.alibi_slopes = device_view<const float, 1>(logits.alibi_slopes);
  rule.sinks = device_view<const float, 1>(logits.sinks);
  return rule;
}

LogitRule make_rule(const AttentionShape& shape, const AttentionParams& params, double logit_scale,
                    const DropoutRule& dropout) {
  LogitRule rule = make_rule(shape, params.logits, logit_scale, window_of(params));
  rule.kv_lengths = device_view<const int, 1>(params.kv_lengths);
  rule.q_starts = device_view<const int, 1>(params.q_starts);
  rule.kv_starts = device_view<const int, 1>(params.kv_starts);
  rule.mask = broadcast_view<const unsigned char, 4>(params.mask);
  rule.block_mask = broadcast_view<const unsigned char, 4>(params.block_mask);
  rule.block_q = small(std::max<std::int64_t>(1, std::min(params.block_q, kLargestPosition)));
  rule.block_kv = small(std::max<std::int64_t>(1, std::min(params.block_kv, kLargestPosition)));
  rule.bias = any_view<4>(params.bias);
  for (int i = 0; i < 4 && params.bias.defined(); ++i) {
    if (params.bias.size(i) == 1) rule.bias.strides[i] = 0;
  }
  rule.additive_v = device_view<const float, 2>(params.additive_v);
  rule.dropout = DropoutBits::make(dropout);
  return rule;
}

}  // namespace rootdk::cuda
