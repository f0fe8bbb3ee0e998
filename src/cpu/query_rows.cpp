#include "cpu/query_rows.h"

#include <limits>
#include <numbers>

#include "core/strided.h"

namespace rootdk::cpu {
namespace {

const std::byte* element_at(const ConstTensorView& view, std::initializer_list<std::int64_t> index) {
  std::int64_t offset = 0;
  int dimension = 0;
  for (std::int64_t i : index) offset += i * view.stride(dimension++);
  return static_cast<const std::byte*>(view.data) + offset * static_cast<std::int64_t>(size_of(view.dtype));
}

const std::uint8_t* bytes_at(const ConstTensorView& view, std::initializer_list<std::int64_t> index) {
  return reinterpret_cast<const std::uint8_t*>(element_at(view, index));
}

const float* floats_at(const ConstTensorView& view, std::initializer_list<std::int64_t> index) {
  return reinterpret_cast<const float*>(element_at(view, index));
}

}  // namespace

ElementKind element_kind(DType dtype) {
  switch (dtype) {
    case DType::bf16: return ElementKind::bf16;
    case DType::f16: return ElementKind::f16;
    default: return ElementKind::f32;
  }
}

QueryRows::QueryRows(const AttentionShape& shape, const LogitParams& logits, double logit_scale,
                     const KeyWindow& window)
    : window_(window), alibi_slopes_(logits.alibi_slopes), sinks_(logits.sinks) {
  rule_.score = ScoreKind::dot;
  rule_.scale = static_cast<float>(logit_scale * std::numbers::log2e);
  if (logits.softcap > 0) {
    rule_.cap = static_cast<float>(logits.softcap * std::numbers::log2e);
    rule_.cap_scale = static_cast<float>(logit_scale / logits.softcap);
  }
  if (logits.relative_table.defined()) {
    relative_ = broadcast(logits.relative_table, {shape.heads, logits.relative_table.size(1)});
    rule_.has_relative = true;
    rule_.relative_stride = relative_.stride(1);
    rule_.relative_entries = relative_.size(1);
    rule_.relative_zero = logits.relative_zero;
  }
  rule_.has_alibi = alibi_slopes_.defined();
  rule_.transforms = transforms();
}

QueryRows::QueryRows(const AttentionShape& shape, const AttentionParams& params, double logit_scale,
                     const DropoutRule& dropout)
    : QueryRows(shape, params.logits, logit_scale, window_of(params)) {
  if (params.score == Score::additive) {
    rule_.score = ScoreKind::additive;
    additive_v_ = params.additive_v;
    rule_.additive_stride = additive_v_.stride(1);
  }
  if (params.bias.defined()) {
    bias_ = broadcast(params.bias, {shape.batch, shape.heads, shape.q_len, shape.kv_len});
    rule_.has_bias = true;
    rule_.bias_kind = element_kind(bias_.dtype);
    rule_.bias_stride = bias_.stride(3);
  }
  if (params.mask.defined()) {
    mask_ = broadcast(params.mask, {shape.batch, shape.heads, shape.q_len, shape.kv_len});
    rule_.has_mask = true;
    rule_.mask_stride = mask_.stride(3);
  }
  if (params.block_mask.defined()) {
    const std::int64_t q_blocks = blocks_over(shape.q_len, params.block_q);
    const std::int64_t kv_blocks = blocks_over(shape.kv_len, params.block_kv);
    block_mask_ = broadcast(params.block_mask, {shape.batch, shape.heads, q_blocks, kv_blocks});
    block_q_ = params.block_q;
    rule_.has_block_mask = true;
    rule_.block_mask_stride = block_mask_.stride(3);
    rule_.block_keys = params.block_kv;
  }
  rule_.rounds_weights = params.compute == DType::f8e4m3;
  rule_.dropout_threshold = dropout.threshold;
  rule_.dropout_seed = dropout.seed;
  rule_.dropout_first_key = shape.origin.key;
  origin_ = shape.origin;
  rule_.transforms = transforms();
}

bool QueryRows::transforms() const {
  return rule_.score != ScoreKind::dot || rule_.cap != 0.0f || rule_.has_bias || rule_.has_relative ||
         rule_.has_alibi || !(rule_.scale > 0.0f);
}

void QueryRows::set(QueryRow& row, const SequenceRange& range, std::int64_t sequence, std::int64_t head,
                    std::int64_t i) const {
  const KeyRange keys = key_range(range, window_, i);
  row = QueryRow();
  row.position = range.position(i);
  row.key_begin = keys.begin;
  row.key_end = keys.end;
  if (rule_.has_bias) row.bias = element_at(bias_, {sequence, head, i, 0});
  if (rule_.has_mask) row.mask = bytes_at(mask_, {sequence, head, i, 0});
  if (rule_.has_block_mask) row.block_mask = bytes_at(block_mask_, {sequence, head, i / block_q_, 0});
  if (rule_.has_relative) row.relative = floats_at(relative_, {head, 0});
  if (rule_.has_alibi) row.alibi_slope = *floats_at(alibi_slopes_, {head});
  if (rule_.score == ScoreKind::additive) row.additive = floats_at(additive_v_, {head, 0});
  row.query = static_cast<std::uint32_t>(origin_.query + i);
  row.head = static_cast<std::uint32_t>(origin_.head + head);
  row.batch = static_cast<std::uint32_t>(origin_.sequence + sequence);
}

double QueryRows::sink(std::int64_t head) const {
  if (!sinks_.defined()) return -std::numeric_limits<double>::infinity();
  return *floats_at(sinks_, {head}) * std::numbers::log2e;
}

}  // namespace rootdk::cpu
