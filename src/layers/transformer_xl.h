#pragma once

// The block of Transformer-XL: attention over the segment and a memory of the one before, with relative positions
//     logit(i, j) = ((q_i + u) . k_j + (q_i + v) . W_R r_{i - j}) / sqrt(head_dim)
// and the norm after each residual connection.

#include "layers/block.h"

namespace rootdk {

struct TransformerXlConfig {
  std::int64_t d_model = 0, heads = 0, d_ff = 0;
  NormParams norm{};
};

class TransformerXlBlock {
 public:
  explicit TransformerXlBlock(const TransformerXlConfig& config);

  // x [batch len, d_model]; memory [batch memory_len, d_model] or undefined: no gradient flows into it.
  Value operator()(Context& context, const Value& x, const Tensor& memory, std::int64_t batch,
                   AttentionCapture* capture = nullptr) const;
  void collect(Parameters& into, const std::string& name) const;

  Linear q, k, v, r, out;
  Value u_bias, v_bias;  // [d_model], one stretch a head
  FeedForward feed_forward;
  Norm attention_norm, feed_forward_norm;

 private:
  TransformerXlConfig config_;
};

}  // namespace rootdk
