// Encoders of BERT's family, and ModernBERT.

#include "models/architecture_parsers.h"

namespace rootdk {
namespace {

// The parts that BERT's descendants share, under the names that each has for them.
struct BertFields {
  FieldNames width, heads, inner, layers, activation;
  std::string_view usual_activation = "gelu";
};

TransformerConfig parse_bert_like(const JsonFields& fields, const BertFields& names) {
  TransformerConfig config = basic_config(fields, names.width);
  config.positions = PositionEncoding::learned;
  config.max_position = fields.size({"max_position_embeddings"});
  config.output = ModelOutput::hidden_states;
  BlockConfig block = layer_norm_block(fields.epsilon({"layer_norm_eps"}, 1e-12));
  block.placement = NormPlacement::post;
  block.attention = {.d_model = config.d_model, .heads = fields.size(names.heads), .qkv_bias = true, .out_bias = true};
  block.feed_forward = {.d_model = config.d_model,
                        .d_ff = fields.size(names.inner),
                        .activation = activation(fields, names.activation, std::string(names.usual_activation)),
                        .bias = true};
  check_heads(fields, block.attention, *names.width.begin(), *names.heads.begin());
  fill_stack(config.stack, block, layer_count(fields, names.layers));
  config.stack.embedding_norm = true;
  config.stack.final_norm = false;
  return config;
}

}  // namespace

// Positions begin behind the id of the padding.
TransformerConfig parse_roberta(const JsonFields& fields) {
  TransformerConfig config = parse_bert(fields);
  config.position_offset = fields.integer({"pad_token_id"}, 1) + 1;
  require(config.position_offset >= 0 && config.position_offset < config.max_position, fields.where(),
          ": pad_token_id ", config.position_offset - 1, " leaves none of the max_position_embeddings ",
          config.max_position);
  config.max_position -= config.position_offset;
  return config;
}

TransformerConfig parse_distilbert(const JsonFields& fields) {
  return parse_bert_like(fields, {.width = {"dim", "hidden_size"},
                                  .heads = {"n_heads", "num_attention_heads"},
                                  .inner = {"hidden_dim", "intermediate_size"},
                                  .layers = {"n_layers", "num_hidden_layers"},
                                  .activation = {"activation"}});
}

TransformerConfig parse_albert(const JsonFields& fields) {
  TransformerConfig config = parse_bert_like(fields, {.width = {"hidden_size"},
                                                      .heads = {"num_attention_heads"},
                                                      .inner = {"intermediate_size"},
                                                      .layers = {"num_hidden_layers"},
                                                      .activation = {"hidden_act"},
                                                      .usual_activation = "gelu_new"});
  config.token_types = fields.size({"type_vocab_size"}, 2);
  config.embedding_size = fields.size({"embedding_size"}, 128);
  config.stack.groups = fields.size({"num_hidden_groups"}, 1);
  const std::int64_t inner = fields.size({"inner_group_num"}, 1);
  require(inner == 1, fields.where(), ": inner_group_num ", inner, " is not supported; supported: 1");
  require(config.stack.groups <= static_cast<std::int64_t>(config.stack.blocks.size()), fields.where(),
          ": num_hidden_groups ", config.stack.groups, " passes num_hidden_layers ", config.stack.blocks.size());
  return config;
}

TransformerConfig parse_modernbert(const JsonFields& fields) {
  TransformerConfig config = basic_config(fields, {"hidden_size"});
  config.positions = PositionEncoding::rotary;
  config.output = ModelOutput::hidden_states;
  BlockConfig block;
  block.norm = {.kind = NormKind::layer, .eps = fields.epsilon({"norm_eps"}, 1e-5)};
  block.norm_bias = fields.boolean({"norm_bias"}, false);
  const bool bias = fields.boolean({"attention_bias"}, false);
  block.attention = {
      .d_model = config.d_model, .heads = fields.size({"num_attention_heads"}), .qkv_bias = bias, .out_bias = bias};
  block.attention.rotary = true;
  check_heads(fields, block.attention, "hidden_size", "num_attention_heads");
  block.attention.head_dim = config.d_model / block.attention.heads;
  block.feed_forward = {.d_model = config.d_model,
                        .d_ff = fields.size({"intermediate_size"}),
                        .activation = activation(fields, {"hidden_activation"}, "gelu"),
                        .gated = true,
                        .bias = fields.boolean({"mlp_bias"}, false)};
  fill_stack(config.stack, block, layer_count(fields, {"num_hidden_layers"}));
  config.stack.embedding_norm = true;
  config.stack.blocks.front().attention_norm = false;  // the embeddings' norm serves
  const std::int64_t head_dim = block.attention.head_dim;
  config.rope = layer_rope(fields, head_dim, "full_attention", {"global_rope_theta"}, 160000.0);
  config.local_rope = layer_rope(fields, head_dim, "sliding_attention", {"local_rope_theta"}, 10000.0);
  const std::int64_t every = fields.size({"global_attn_every_n_layers"}, 3);
  const std::int64_t half = fields.size({"local_attention"}, 128) / 2;
  const std::vector<bool> slides = sliding_layers(fields, config.stack.blocks.size(), [=](std::size_t layer) {
    return static_cast<std::int64_t>(layer) % every != 0;
  });
  for (std::size_t layer = 0; layer < slides.size(); ++layer) {
    if (!slides[layer]) continue;
    MultiHeadConfig& attention = config.stack.blocks[layer].attention;
    attention.window_left = attention.window_right = half;
    attention.local_rope = true;
  }
  return config;
}

}  // namespace rootdk
