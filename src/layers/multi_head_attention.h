#pragma once

// Multi-head attention: projections, optional QK-norm and rotation, the library's attention, and the output projection.
//     out = W_O attention(W_Q x, W_K source, W_V source)
// source is x itself, x behind the earlier tokens in a KvCache, or another sequence (cross-attention).

#include <optional>

#include "layers/cached_attention.h"
#include "layers/dot_product.h"
#include "layers/linear.h"
#include "layers/norms.h"
#include "layers/rotary.h"

namespace rootdk {

struct MultiHeadConfig {
  std::int64_t d_model = 0, heads = 0;
  std::int64_t kv_heads = 0;   // 0: as many as heads
  std::int64_t head_dim = 0;   // 0: d_model / heads, which must be whole
  std::int64_t value_dim = 0;  // of a head; 0: head_dim
  bool qkv_bias = false, out_bias = false;
  bool output_projection = true;        // false: the result is the heads' outputs side by side
  std::optional<NormParams> qk_norm{};  // over each head of q and k, before the rotation
  bool qk_norm_over_heads = false;      // over all heads together instead (OLMo 2)
  bool sinks = false;                   // a learned logit per head
  bool alibi = false;
  bool rotary = false;  // rotates with AttentionInput::rope
  Score score = Score::dot;
  Scale scale{};
  double softcap = 0.0;
  bool causal = false;
  std::int64_t window_left = -1;   // keys before the query's own that stay visible; -1: all
  std::int64_t window_right = -1;  // keys behind it, where it is not causal; -1: all
  bool local_rope = false;         // rotates with the table for layers that slide (Gemma 3, ModernBERT)
  WeightMemory memory = WeightMemory::own;
};

// What one call brings besides x [batch len, d_model].
struct AttentionInput {
  std::int64_t batch = 1;
  Value source{};  // cross-attention: the other sequence [batch kv_len, d_model]; null: x
  std::shared_ptr<const RopeTable> rope{};
  std::shared_ptr<const PaddingMask> padding{};  // of the keys
  Value relative_table{};                        // T5's, or null
  std::int64_t relative_zero = 0;
  // Over a cache, which has no gradient: batch is 1, and x has the rows of the steps one after another.
  CachedRows cached{};                 // self-attention: x joins these sequences
  std::span<const FixedKeys> fixed{};  // cross-attention, one a step of `steps`: what fixed_keys() gave, not source
  std::span<const KvStep> steps{};
  AttentionCapture* capture = nullptr;
};

class MultiHeadAttention {
 public:
  MultiHeadAttention() = default;
  explicit MultiHeadAttention(const MultiHeadConfig& config);

  Value operator()(Context& context, const Value& x, const AttentionInput& input) const;
  // The keys and values of a source that stays the same from call to call: an encoder's output.
  FixedKeys fixed_keys(Context& context, const Value& source) const;
  void collect(Parameters& into, const std::string& name) const;
  const MultiHeadConfig& config() const { return config_; }

  Linear q, k, v;
  Linear out;  // empty without an output projection
  Norm q_norm, k_norm;
  Value sinks;       // [heads], or null
  Value additive_v;  // [heads, head_dim] with the additive score, or null

 private:
  // What the projection gave, normed and rotated.
  Value finish_keys(Context& context, Value keys, const std::shared_ptr<const RopeTable>& rope) const;

  MultiHeadConfig config_;
  std::shared_ptr<const Tensor> alibi_;
};

// QK-clip: where a head's largest logit of the last step passed `limit`, shrinks its query and key projections so that
// the same inputs would give `limit`. Key heads that several query heads share are left alone and the query head takes
// the whole factor. max_logit: one a head. Returns how many heads were clipped.
int qk_clip(MultiHeadAttention& layer, std::span<const float> max_logit, double limit);

}  // namespace rootdk
