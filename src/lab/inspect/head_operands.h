#pragma once

// What a head's weights are made of: q, k and v as the kernel took them, and how it makes logits of its scores.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "layers/multi_head_attention.h"

namespace rootdk::lab {

inline constexpr std::int64_t kOperandTokens = 256;  // of longer texts no operands are kept

// logit = softcap(scale q · k) - slope |i - j| + relative[clamp(i - j + relative_zero)], where key j is visible.
struct LogitRules {
  double scale = 1, softcap = 0, slope = 0;
  bool causal = false;
  std::int64_t window_left = -1, window_right = -1;
  std::optional<double> sink{};  // one more logit in the denominator
  std::vector<float> relative{};
  std::int64_t relative_zero = 0;
};

struct HeadOperands {
  using Matrix = std::shared_ptr<const std::vector<float>>;
  std::int64_t head_dim = 0, value_dim = 0;
  std::vector<float> q{};  // [rows, head_dim]
  Matrix k{}, v{};         // [keys, head_dim], [keys, value_dim]; heads of a group share them
  LogitRules rules{};
};

// The operands of one layer's heads, out of what was captured of it.
class LayerOperands {
 public:
  LayerOperands(const AttentionCapture& capture, const MultiHeadConfig& config, bool crosses)
      : capture_(capture), config_(config), crosses_(crosses) {}

  // Null where none were captured, or where the score is not q · k.
  std::shared_ptr<const HeadOperands> of(std::int64_t head);

 private:
  LogitRules rules(std::int64_t head, std::int64_t head_dim) const;

  const AttentionCapture& capture_;
  const MultiHeadConfig& config_;
  bool crosses_;
  std::map<std::int64_t, std::pair<HeadOperands::Matrix, HeadOperands::Matrix>> keys_;  // by key head
};

}  // namespace rootdk::lab
