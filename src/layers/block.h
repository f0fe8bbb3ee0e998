#pragma once

// A transformer block: attention, optional cross-attention and feed-forward, each with its residual connection.

#include "layers/feed_forward.h"
#include "layers/multi_head_attention.h"

namespace rootdk {

enum class NormPlacement : std::int32_t {
  pre = 0,       // x + f(norm(x))
  post = 1,      // norm(x + f(x)): the original Transformer, BERT, Marian
  sandwich = 2,  // x + norm'(f(norm(x))): Gemma 2
  parallel = 3,  // x + attention(norm(x)) + feed_forward(norm'(x)): GPT-NeoX
  output = 4,    // x + norm(f(x)): OLMo 2
};

struct BlockConfig {
  MultiHeadConfig attention{};
  bool cross_attention = false;  // same sizes as attention, without positions or causality
  FeedForwardConfig feed_forward{};
  NormParams norm{};
  bool norm_bias = false;
  NormPlacement placement = NormPlacement::pre;
  bool residual_after_norm = false;  // pre: the residual branches off behind the norm (BLOOM's option)
  bool attention_norm = true;        // false: attention takes x itself (ModernBERT's first block)
};

struct BlockInput {
  AttentionInput self{};
  AttentionInput cross{};  // read where the block has cross-attention; its source is the encoder's output
};

class Block {
 public:
  explicit Block(const BlockConfig& config);

  Value operator()(Context& context, const Value& x, const BlockInput& input) const;
  void collect(Parameters& into, const std::string& name) const;
  const BlockConfig& config() const { return config_; }

  MultiHeadAttention attention, cross;
  FeedForward feed_forward;
  Norm attention_norm, attention_post_norm;  // the second only for sandwich
  Norm cross_norm;
  Norm feed_forward_norm, feed_forward_post_norm;

 private:
  // One residual branch: x and f, joined as the placement says.
  template <class Branch>
  Value residual(Context& context, const Value& x, const Norm& norm, const Norm& post_norm, Branch&& branch) const;

  BlockConfig config_;
};

}  // namespace rootdk
