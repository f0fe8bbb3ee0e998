#include "models/architectures.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "models/architecture_parsers.h"
#include "models/tensor_names.h"

namespace rootdk {

TransformerConfig parse_bert(const JsonFields& fields) {
  require(!fields.boolean({"is_decoder"}, false), fields.where(), ": is_decoder true is not supported for bert");
  const std::string kind = fields.text({"position_embedding_type"}, "absolute");
  require(kind == "absolute", fields.where(), ": position_embedding_type \"", kind,
          "\" is not supported; supported: absolute");
  TransformerConfig config = basic_config(fields, {"hidden_size"});
  config.positions = PositionEncoding::learned;
  config.max_position = fields.size({"max_position_embeddings"});
  config.token_types = fields.size({"type_vocab_size"}, 2);
  config.output = ModelOutput::hidden_states;
  BlockConfig block = layer_norm_block(fields.epsilon({"layer_norm_eps"}, 1e-12));
  block.placement = NormPlacement::post;
  block.attention = {
      .d_model = config.d_model, .heads = fields.size({"num_attention_heads"}), .qkv_bias = true, .out_bias = true};
  block.feed_forward = {.d_model = config.d_model,
                        .d_ff = fields.size({"intermediate_size"}),
                        .activation = activation(fields, {"hidden_act"}, "gelu"),
                        .bias = true};
  check_heads(fields, block.attention, "hidden_size", "num_attention_heads");
  fill_stack(config.stack, block, layer_count(fields, {"num_hidden_layers"}));
  config.stack.embedding_norm = true;
  config.stack.final_norm = false;
  return config;
}

TransformerConfig parse_llama_like(const JsonFields& fields, std::int64_t default_head_dim, bool default_tied) {
  TransformerConfig config = basic_config(fields, {"hidden_size"});
  config.positions = PositionEncoding::rotary;
  config.tied_head = fields.boolean({"tie_word_embeddings"}, default_tied);
  BlockConfig block;
  block.norm = {.kind = NormKind::rms, .eps = fields.epsilon({"rms_norm_eps"}, 1e-6)};
  const std::int64_t heads = fields.size({"num_attention_heads"});
  const bool bias = fields.boolean({"attention_bias"}, false);
  block.attention = {.d_model = config.d_model,
                     .heads = heads,
                     .kv_heads = fields.size({"num_key_value_heads"}, heads),
                     .head_dim = fields.has("head_dim") ? fields.size({"head_dim"}) : default_head_dim,
                     .qkv_bias = bias,
                     .out_bias = bias};
  block.attention.rotary = true;
  block.attention.causal = true;
  check_heads(fields, block.attention, "hidden_size", "num_attention_heads");
  if (block.attention.head_dim == 0) block.attention.head_dim = config.d_model / heads;
  config.rope = rope(fields, block.attention.head_dim, 1.0);
  block.feed_forward = {.d_model = config.d_model,
                        .d_ff = fields.size({"intermediate_size"}),
                        .activation = activation(fields, {"hidden_act", "hidden_activation"}, "silu"),
                        .gated = true,
                        .bias = fields.boolean({"mlp_bias"}, false)};
  fill_stack(config.stack, block, layer_count(fields, {"num_hidden_layers"}));
  return config;
}

namespace {

TransformerConfig parse_gpt2(const JsonFields& fields) {
  TransformerConfig config = basic_config(fields, {"n_embd", "hidden_size"});
  config.positions = PositionEncoding::learned;
  config.max_position = fields.size({"n_positions", "n_ctx", "max_position_embeddings"});
  config.tied_head = fields.boolean({"tie_word_embeddings"}, true);
  BlockConfig block = layer_norm_block(fields.epsilon({"layer_norm_epsilon"}, 1e-5));
  block.attention = {.d_model = config.d_model, .heads = fields.size({"n_head"}), .qkv_bias = true, .out_bias = true};
  block.attention.causal = true;
  if (!fields.boolean({"scale_attn_weights"}, true)) block.attention.scale = Scale::none();
  block.feed_forward = {.d_model = config.d_model,
                        .d_ff = fields.size({"n_inner"}, 4 * config.d_model),
                        .activation = activation(fields, {"activation_function"}, "gelu_new"),
                        .bias = true};
  fill_stack(config.stack, block, layer_count(fields, {"n_layer"}));
  check_heads(fields, block.attention, "n_embd", "n_head");
  if (fields.boolean({"scale_attn_by_inverse_layer_idx"}, false)) {
    for (std::size_t layer = 0; layer < config.stack.blocks.size(); ++layer) {
      MultiHeadConfig& attention = config.stack.blocks[layer].attention;
      attention.scale = attention.scale.factor(config.d_model / attention.heads) / static_cast<double>(layer + 1);
    }
  }
  return config;
}

TransformerConfig parse_llama(const JsonFields& fields) { return parse_llama_like(fields, 0, false); }

TransformerConfig parse_mistral(const JsonFields& fields) {
  TransformerConfig config = parse_llama_like(fields, 0, false);
  apply_windows(fields, config.stack, 4096, [](std::size_t) { return true; });
  return config;
}

bool every_other_layer(std::size_t layer) { return layer % 2 == 0; }

TransformerConfig parse_gemma2(const JsonFields& fields) {
  require(!fields.boolean({"use_bidirectional_attention"}, false), fields.where(),
          ": use_bidirectional_attention true is not supported");
  TransformerConfig config = parse_llama_like(fields, 256, true);
  config.embedding_scale = std::sqrt(static_cast<double>(config.d_model));
  // A cap that is left out has its usual value; null says that there is none.
  auto softcap = [&](std::string_view name, double usual) {
    return fields.number({name}, fields.object().contains(name) ? 0.0 : usual);
  };
  config.head_softcap = softcap("final_logit_softcapping", 30.0);
  const double scalar = fields.number({"query_pre_attn_scalar"}, 256.0);
  require(scalar > 0, fields.where(), ": query_pre_attn_scalar ", scalar, " must be positive");
  const std::string default_activation = "gelu_pytorch_tanh";
  config.stack.norm.kind = NormKind::rms_unit_offset;
  for (BlockConfig& block : config.stack.blocks) {
    block.norm.kind = NormKind::rms_unit_offset;
    block.placement = NormPlacement::sandwich;
    block.attention.scale = 1.0 / std::sqrt(scalar);
    block.attention.softcap = softcap("attn_logit_softcapping", 50.0);
    block.feed_forward.activation = activation(fields, {"hidden_activation"}, default_activation);
  }
  apply_windows(fields, config.stack, 4096, every_other_layer);
  return config;
}

TransformerConfig parse_gpt_oss(const JsonFields& fields) {
  TransformerConfig config = parse_llama_like(fields, 64, false);
  const std::int64_t experts = fields.size({"num_local_experts", "num_experts"});
  const std::int64_t top_k = fields.size({"num_experts_per_tok", "experts_per_token"});
  require(top_k <= experts && experts <= 4096, fields.where(), ": num_experts_per_tok ", top_k,
          " of num_local_experts ", experts, " (at most 4096) is not possible");
  const bool bias = fields.boolean({"attention_bias"}, true);
  for (BlockConfig& block : config.stack.blocks) {
    block.attention.qkv_bias = block.attention.out_bias = bias;
    block.attention.sinks = true;
    block.feed_forward.experts = experts;
    block.feed_forward.top_k = top_k;
    block.feed_forward.bias = true;
    block.feed_forward.clamp_limit = fields.number({"swiglu_limit"}, 7.0);
    require(block.feed_forward.activation == Activation::silu, fields.where(), ": hidden_act \"",
            name_of(block.feed_forward.activation), "\" is not supported for gpt_oss; supported: silu");
  }
  apply_windows(fields, config.stack, 128, every_other_layer);
  return config;
}

TransformerConfig parse_gpt_neox(const JsonFields& fields) {
  TransformerConfig config = basic_config(fields, {"hidden_size"});
  config.positions = PositionEncoding::rotary;
  config.tied_head = fields.boolean({"tie_word_embeddings"}, false);
  BlockConfig block = layer_norm_block(fields.epsilon({"layer_norm_eps"}, 1e-5));
  if (fields.boolean({"use_parallel_residual"}, true)) block.placement = NormPlacement::parallel;
  const bool bias = fields.boolean({"attention_bias"}, true);
  block.attention = {
      .d_model = config.d_model, .heads = fields.size({"num_attention_heads"}), .qkv_bias = bias, .out_bias = bias};
  block.attention.rotary = true;
  block.attention.causal = true;
  check_heads(fields, block.attention, "hidden_size", "num_attention_heads");
  config.rope = rope(fields, config.d_model / block.attention.heads, fields.number({"rotary_pct"}, 0.25));
  block.feed_forward = {.d_model = config.d_model,
                        .d_ff = fields.size({"intermediate_size"}),
                        .activation = activation(fields, {"hidden_act"}, "gelu"),
                        .bias = true};
  fill_stack(config.stack, block, layer_count(fields, {"num_hidden_layers"}));
  return config;
}

TransformerConfig parse_bloom(const JsonFields& fields) {
  TransformerConfig config = basic_config(fields, {"hidden_size", "n_embed"});
  config.tied_head = fields.boolean({"tie_word_embeddings"}, true);
  BlockConfig block = layer_norm_block(fields.epsilon({"layer_norm_epsilon"}, 1e-5));
  block.residual_after_norm = fields.boolean({"apply_residual_connection_post_layernorm"}, false);
  block.attention = {.d_model = config.d_model,
                     .heads = fields.size({"n_head", "num_attention_heads"}),
                     .qkv_bias = true,
                     .out_bias = true};
  block.attention.alibi = true;
  block.attention.causal = true;
  check_heads(fields, block.attention, "hidden_size", "n_head");
  block.feed_forward = {
      .d_model = config.d_model, .d_ff = 4 * config.d_model, .activation = Activation::gelu_tanh, .bias = true};
  fill_stack(config.stack, block, layer_count(fields, {"n_layer", "num_hidden_layers"}));
  config.stack.embedding_norm = true;
  return config;
}

TransformerConfig parse_t5(const JsonFields& fields) {
  TransformerConfig config = basic_config(fields, {"d_model"});
  config.tied_head = fields.boolean({"tie_word_embeddings"}, true);
  if (fields.boolean({"scale_decoder_outputs"}, config.tied_head)) {
    config.head_scale = 1.0 / std::sqrt(static_cast<double>(config.d_model));
  }
  std::string projection = fields.text({"feed_forward_proj"}, "relu");
  const bool gated = projection.starts_with("gated-");
  if (gated) projection = projection.substr(6);
  if (gated && projection == "gelu") projection = "gelu_new";  // what transformers makes of it
  BlockConfig block;
  block.norm = {.kind = NormKind::rms, .eps = fields.epsilon({"layer_norm_epsilon"}, 1e-6)};
  block.attention = {.d_model = config.d_model, .heads = fields.size({"num_heads"}), .head_dim = fields.size({"d_kv"})};
  block.attention.scale = Scale::none();
  block.feed_forward = {.d_model = config.d_model,
                        .d_ff = fields.size({"d_ff"}),
                        .activation = activation_named(fields.where(), "feed_forward_proj", projection),
                        .gated = gated};
  T5BucketParams buckets{.bidirectional = true,
                         .buckets = fields.size({"relative_attention_num_buckets"}, 32),
                         .max_distance = fields.size({"relative_attention_max_distance"}, 128)};
  require(buckets.buckets >= 4 && buckets.buckets % 2 == 0 && buckets.max_distance > buckets.buckets / 2 &&
              buckets.max_distance <= (1 << 20),
          fields.where(), ": relative_attention_num_buckets ", buckets.buckets,
          " with relative_attention_max_distance ", buckets.max_distance,
          " is not supported; even buckets from 4, and a distance above half of them");
  const std::int64_t layers = layer_count(fields, {"num_layers"});
  config.encoder.emplace();
  fill_stack(*config.encoder, block, layers);
  config.encoder->relative = buckets;
  block.attention.causal = true;
  block.cross_attention = true;
  fill_stack(config.stack, block,
             fields.has("num_decoder_layers") ? layer_count(fields, {"num_decoder_layers"}) : layers);
  buckets.bidirectional = false;
  config.stack.relative = buckets;
  return config;
}

BlockConfig marian_block(const JsonFields& fields, std::int64_t d_model, bool decoder) {
  BlockConfig block = layer_norm_block(1e-5);
  block.placement = NormPlacement::post;
  const std::string_view heads = decoder ? "decoder_attention_heads" : "encoder_attention_heads";
  block.attention = {.d_model = d_model, .heads = fields.size({heads}), .qkv_bias = true, .out_bias = true};
  block.attention.causal = decoder;
  block.cross_attention = decoder;
  block.feed_forward = {.d_model = d_model,
                        .d_ff = fields.size({decoder ? "decoder_ffn_dim" : "encoder_ffn_dim"}),
                        .activation = activation(fields, {"activation_function"}, "gelu"),
                        .bias = true};
  check_heads(fields, block.attention, "d_model", heads);
  return block;
}

TransformerConfig parse_marian(const JsonFields& fields) {
  require(!fields.boolean({"normalize_before"}, false) && !fields.boolean({"add_final_layer_norm"}, false) &&
              !fields.boolean({"normalize_embedding"}, false),
          fields.where(), ": normalize_before, add_final_layer_norm and normalize_embedding must be false for marian");
  TransformerConfig config = basic_config(fields, {"d_model"});
  require(config.d_model % 2 == 0, fields.where(), ": d_model ", config.d_model, " must be even for marian");
  config.positions = PositionEncoding::sinusoidal;
  config.sinusoidal = SinusoidalLayout::concatenated;
  if (fields.boolean({"scale_embedding"}, false))
    config.embedding_scale = std::sqrt(static_cast<double>(config.d_model));
  config.tied_head = fields.boolean({"tie_word_embeddings"}, true);
  config.separate_embeddings = !fields.boolean({"share_encoder_decoder_embeddings"}, true);
  if (config.separate_embeddings) config.decoder_vocab_size = fields.size({"decoder_vocab_size"}, config.vocab_size);
  config.head_bias = true;
  config.encoder.emplace();
  fill_stack(*config.encoder, marian_block(fields, config.d_model, false), layer_count(fields, {"encoder_layers"}));
  fill_stack(config.stack, marian_block(fields, config.d_model, true), layer_count(fields, {"decoder_layers"}));
  config.encoder->final_norm = config.stack.final_norm = false;
  return config;
}

constexpr std::array kArchitectures = {
    Architecture{"gpt2", parse_gpt2, &kGpt2Names},
    Architecture{"bert", parse_bert, &kBertNames},
    Architecture{"llama", parse_llama, &kLlamaNames},
    Architecture{"mistral", parse_mistral, &kLlamaNames},
    Architecture{"gpt_neox", parse_gpt_neox, &kGptNeoxNames},
    Architecture{"bloom", parse_bloom, &kBloomNames},
    Architecture{"t5", parse_t5, &kT5Names},
    Architecture{"marian", parse_marian, &kMarianNames},
    Architecture{"gemma2", parse_gemma2, &kGemma2Names},
    Architecture{"qwen3", parse_qwen3, &kLlamaNames},
    Architecture{"gpt_oss", parse_gpt_oss, &kGptOssNames},
    Architecture{"qwen2", parse_qwen2, &kLlamaNames},
    Architecture{"phi3", parse_phi3, &kPhi3Names},
    Architecture{"gemma3_text", parse_gemma3, &kGemma3Names},
    Architecture{"olmo2", parse_olmo2, &kOlmo2Names},
    Architecture{"mixtral", parse_mixtral, &kMixtralNames},
    Architecture{"roberta", parse_roberta, &kRobertaNames},
    Architecture{"xlm-roberta", parse_roberta, &kRobertaNames},
    Architecture{"distilbert", parse_distilbert, &kDistilBertNames},
    Architecture{"albert", parse_albert, &kAlbertNames},
    Architecture{"modernbert", parse_modernbert, &kModernBertNames},
    Architecture{"rootdk_lm", parse_language_model, &kOwnNames},
};

}  // namespace

std::span<const Architecture> architectures() { return kArchitectures; }

}  // namespace rootdk
