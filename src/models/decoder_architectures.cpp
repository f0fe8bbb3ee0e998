// Decoders of LLaMA's family that differ from it in a few places.

#include <cmath>

#include "models/architecture_parsers.h"

namespace rootdk {
namespace {

// Qwen slides from layer max_window_layers on, where it slides at all.
void apply_qwen_windows(const JsonFields& fields, StackConfig& stack) {
  if (!fields.boolean({"use_sliding_window"}, false)) return;
  const std::int64_t first = fields.integer({"max_window_layers"}, 28);
  apply_windows(fields, stack, 4096, [=](std::size_t layer) { return static_cast<std::int64_t>(layer) >= first; });
}

void apply_window_to_all(const JsonFields& fields, StackConfig& stack) {
  if (fields.has("sliding_window")) apply_windows(fields, stack, 4096, [](std::size_t) { return true; });
}

}  // namespace

TransformerConfig parse_qwen2(const JsonFields& fields) {
  TransformerConfig config = parse_llama_like(fields, 0, false);
  for (BlockConfig& block : config.stack.blocks) block.attention.qkv_bias = true;
  apply_qwen_windows(fields, config.stack);
  return config;
}

TransformerConfig parse_qwen3(const JsonFields& fields) {
  TransformerConfig config = parse_llama_like(fields, 128, false);
  for (BlockConfig& block : config.stack.blocks) block.attention.qk_norm = block.norm;
  apply_qwen_windows(fields, config.stack);
  return config;
}

TransformerConfig parse_phi3(const JsonFields& fields) {
  TransformerConfig config = parse_llama_like(fields, 0, false);
  apply_window_to_all(fields, config.stack);
  return config;
}

TransformerConfig parse_gemma3(const JsonFields& fields) {
  require(!fields.boolean({"use_bidirectional_attention"}, false), fields.where(),
          ": use_bidirectional_attention true is not supported");
  const Json plain = without_layer_ropes(fields);
  TransformerConfig config = parse_llama_like(JsonFields(plain, fields.where()), 256, true);
  config.embedding_scale = std::sqrt(static_cast<double>(config.d_model));
  config.head_softcap = fields.number({"final_logit_softcapping"}, 0.0);
  const double scalar = fields.number({"query_pre_attn_scalar"}, 256.0);
  require(scalar > 0, fields.where(), ": query_pre_attn_scalar ", scalar, " must be positive");
  config.stack.norm.kind = NormKind::rms_unit_offset;
  for (BlockConfig& block : config.stack.blocks) {
    block.norm.kind = NormKind::rms_unit_offset;
    block.placement = NormPlacement::sandwich;
    block.attention.qk_norm = block.norm;
    block.attention.scale = 1.0 / std::sqrt(scalar);
    block.attention.softcap = fields.number({"attn_logit_softcapping"}, 0.0);
    block.feed_forward.activation = activation(fields, {"hidden_activation"}, "gelu_pytorch_tanh");
  }
  const std::int64_t pattern = fields.size({"sliding_window_pattern", "_sliding_window_pattern"}, 6);
  apply_windows(fields, config.stack, 4096,
                [=](std::size_t layer) { return (static_cast<std::int64_t>(layer) + 1) % pattern != 0; });
  const std::int64_t head_dim = config.stack.blocks.front().attention.head_dim;
  config.rope = layer_rope(fields, head_dim, "full_attention", {"rope_theta"}, 1e6);
  config.local_rope = layer_rope(fields, head_dim, "sliding_attention", {"rope_local_base_freq"}, 1e4);
  for (BlockConfig& block : config.stack.blocks) block.attention.local_rope = block.attention.window_left >= 0;
  return config;
}

TransformerConfig parse_olmo2(const JsonFields& fields) {
  TransformerConfig config = parse_llama_like(fields, 0, false);
  for (BlockConfig& block : config.stack.blocks) {
    block.placement = NormPlacement::output;
    block.attention.qk_norm = block.norm;
    block.attention.qk_norm_over_heads = true;
  }
  return config;
}

TransformerConfig parse_mixtral(const JsonFields& fields) {
  TransformerConfig config = parse_llama_like(fields, 0, false);
  const std::int64_t experts = fields.size({"num_local_experts"}, 8);
  const std::int64_t top_k = fields.size({"num_experts_per_tok"}, 2);
  require(top_k <= experts && experts <= 4096, fields.where(), ": num_experts_per_tok ", top_k,
          " of num_local_experts ", experts, " (at most 4096) is not possible");
  for (BlockConfig& block : config.stack.blocks) {
    block.feed_forward.experts = experts;
    block.feed_forward.top_k = top_k;
  }
  apply_window_to_all(fields, config.stack);
  return config;
}

}  // namespace rootdk
