#include "lab/inspect/head_operands.h"

namespace rootdk::lab {
namespace {

std::vector<float> head_of(const Tensor& tensor, std::int64_t head) {  // of [1, heads, len, dim]
  const std::int64_t size = tensor.size(2) * tensor.size(3);
  const auto values =
      tensor.values<float>().subspan(static_cast<std::size_t>(head * size), static_cast<std::size_t>(size));
  return {values.begin(), values.end()};
}

}  // namespace

std::shared_ptr<const HeadOperands> LayerOperands::of(std::int64_t head) {
  if (!capture_.q.defined() || config_.score != Score::dot) return nullptr;
  const std::int64_t key_head = head / (capture_.q.size(1) / capture_.k.size(1));
  auto& [k, v] = keys_[key_head];
  if (!k) {
    k = std::make_shared<const std::vector<float>>(head_of(capture_.k, key_head));
    v = std::make_shared<const std::vector<float>>(head_of(capture_.v, key_head));
  }
  return std::make_shared<const HeadOperands>(HeadOperands{.head_dim = capture_.q.size(3),
                                                           .value_dim = capture_.v.size(3),
                                                           .q = head_of(capture_.q, head),
                                                           .k = k,
                                                           .v = v,
                                                           .rules = rules(head, capture_.q.size(3))});
}

LogitRules LayerOperands::rules(std::int64_t head, std::int64_t head_dim) const {
  LogitRules rules{.scale = config_.scale.factor(head_dim), .softcap = config_.softcap};
  if (!crosses_) {
    rules.causal = config_.causal;
    rules.window_left = config_.window_left;
    rules.window_right = config_.window_right;
  }
  const auto index = static_cast<std::size_t>(head);
  if (capture_.alibi) rules.slope = double{capture_.alibi->values<float>()[index]};
  if (capture_.sinks) rules.sink = double{capture_.sinks->data()[index]};
  if (capture_.relative_table) {
    const std::int64_t entries = capture_.relative_table->width();
    const float* row = std::as_const(*capture_.relative_table).data() + head * entries;
    rules.relative.assign(row, row + entries);
    rules.relative_zero = capture_.relative_zero;
  }
  return rules;
}

}  // namespace rootdk::lab
