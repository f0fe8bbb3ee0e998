#pragma once

// Feed-forward layers: f(x W1) W2, its gated forms (SwiGLU, GeGLU), and a mixture of gated experts.

#include "layers/activations.h"
#include "layers/linear.h"

namespace rootdk {

struct FeedForwardConfig {
  std::int64_t d_model = 0, d_ff = 0;
  Activation activation = Activation::gelu;
  bool gated = false;
  bool bias = false;
  // A mixture of gated experts where experts > 0: each token goes to the top_k experts of largest router logit,
  // weighted by the softmax over those.
  std::int64_t experts = 0, top_k = 0;
  double clamp_limit = 0.0;  // above 0: experts are clamped SwiGLU (gpt_oss)
  WeightMemory memory = WeightMemory::own;
};

class FeedForward {
 public:
  FeedForward() = default;
  explicit FeedForward(const FeedForwardConfig& config);

  Value operator()(Context& context, const Value& x) const;
  void collect(Parameters& into, const std::string& name) const;
  const FeedForwardConfig& config() const { return config_; }

  struct Expert {
    Linear gate;  // null weight where not gated
    Linear up, down;
  };
  std::vector<Expert> experts;  // one where there is no mixture
  Linear router;

 private:
  Value mixture(Context& context, const Value& x) const;

  FeedForwardConfig config_;
};

}  // namespace rootdk
