#include "reference/logits.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace rootdk::reference {
namespace {

// Any byte other than 0 keeps.
Strided<const std::uint8_t, 4> bytes(const ConstTensorView& mask) {
  return {static_cast<const std::uint8_t*>(mask.data), mask.strides};
}

// The length of a vector, none of whose squares overflows or underflows.
template <class Element>
double length(std::int64_t dim, Element x) {
  double largest = 0, squares = 0;
  for (std::int64_t d = 0; d < dim; ++d) largest = std::max(largest, std::abs(x(d)));
  const double unit = largest == 0 ? 1 : largest;
  for (std::int64_t d = 0; d < dim; ++d) squares += x(d) / unit * (x(d) / unit);
  return unit * std::sqrt(squares);
}

}  // namespace

LogitInputs::LogitInputs(const AttentionShape& shape, const AttentionParams& params, double logit_scale,
                         const ConstTensorView& q, const ConstTensorView& k)
    : shape(shape),
      params(params),
      logit_scale(logit_scale),
      q(q),
      k(k),
      additive_v(params.additive_v),
      alibi_slopes(params.logits.alibi_slopes),
      sinks(params.logits.sinks) {
  const AttentionShape& s = shape;
  if (params.bias.defined()) bias = Doubles<4>(broadcast(params.bias, {s.batch, s.heads, s.q_len, s.kv_len}));
  if (params.mask.defined()) mask = bytes(broadcast(params.mask, {s.batch, s.heads, s.q_len, s.kv_len}));
  if (params.logits.relative_table.defined()) {
    relative_table =
        Doubles<2>(broadcast(params.logits.relative_table, {s.heads, params.logits.relative_table.size(1)}));
  }
  if (params.block_mask.defined()) {
    const std::int64_t q_blocks = blocks_over(s.q_len, params.block_q);
    const std::int64_t kv_blocks = blocks_over(s.kv_len, params.block_kv);
    block_mask = bytes(broadcast(params.block_mask, {s.batch, s.heads, q_blocks, kv_blocks}));
  }
}

HeadLogits::HeadLogits(const LogitInputs& inputs, std::int64_t sequence, std::int64_t head)
    : in_(inputs),
      sequence_(sequence),
      head_(head),
      kv_head_(head / inputs.shape.group()),
      range_(sequence_range(inputs.shape, inputs.params, sequence)) {}

bool HeadLogits::keeps(std::int64_t i, std::int64_t j) const {
  const KeyRange range = key_range(range_, window_of(in_.params), i);  // causal, window and key length
  if (j < range.begin || j >= range.end) return false;
  if (in_.mask && !in_.mask(sequence_, head_, i, j)) return false;
  if (in_.block_mask && !in_.block_mask(sequence_, head_, i / in_.params.block_q, j / in_.params.block_kv)) {
    return false;
  }
  return true;
}

double HeadLogits::score(std::int64_t i, std::int64_t j) const {
  const std::int64_t head_dim = in_.shape.head_dim;
  double dot = 0, additive = 0;
  switch (in_.params.score) {
    case Score::dot:
      for (std::int64_t d = 0; d < head_dim; ++d) dot += q(i, d) * k(j, d);
      return dot;
    case Score::cosine: {
      const double q_length = length_q(i), k_length = length_k(j);
      // Beside a zero vector the cosine is 0, unless the other one is not finite.
      const double q_unit = q_length == 0 ? 1 : q_length, k_unit = k_length == 0 ? 1 : k_length;
      for (std::int64_t d = 0; d < head_dim; ++d) dot += q(i, d) / q_unit * (k(j, d) / k_unit);
      return dot;
    }
    case Score::additive:
      for (std::int64_t d = 0; d < head_dim; ++d) additive += additive_v(d) * std::tanh(q(i, d) + k(j, d));
      return additive;
  }
  return 0;
}

double HeadLogits::length_q(std::int64_t i) const {
  return length(in_.shape.head_dim, [&](std::int64_t d) { return q(i, d); });
}

double HeadLogits::length_k(std::int64_t j) const {
  return length(in_.shape.head_dim, [&](std::int64_t d) { return k(j, d); });
}

double HeadLogits::logit(std::int64_t i, std::int64_t j) const {
  if (!keeps(i, j)) return -std::numeric_limits<double>::infinity();
  const double cap = in_.params.logits.softcap;
  double x = score(i, j) * in_.logit_scale;
  if (cap > 0) x = cap * std::tanh(x / cap);
  if (in_.relative_table) x += in_.relative_table(head_, relative_entry(i, j));
  if (in_.alibi_slopes) x -= in_.alibi_slopes(head_) * std::abs(static_cast<double>(distance(i, j)));
  if (in_.bias) x += in_.bias(sequence_, head_, i, j);
  return x;
}

double HeadLogits::logit_slope(std::int64_t i, std::int64_t j) const {
  const double cap = in_.params.logits.softcap;
  if (cap == 0) return in_.logit_scale;
  const double t = std::tanh(score(i, j) * in_.logit_scale / cap);
  return in_.logit_scale * (1 - t * t);
}

double HeadLogits::sink() const { return in_.sinks ? in_.sinks(head_) : -std::numeric_limits<double>::infinity(); }

std::int64_t HeadLogits::relative_entry(std::int64_t i, std::int64_t j) const {
  const std::int64_t last = in_.params.logits.relative_table.size(1) - 1;
  return std::clamp<std::int64_t>(distance(i, j) + in_.params.logits.relative_zero, 0, last);
}

}  // namespace rootdk::reference
