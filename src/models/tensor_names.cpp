#include "models/tensor_names.h"

namespace rootdk {
namespace {

// Many architectures differ from LLaMA or BERT in a few names.
template <class Change>
TensorNames changed(TensorNames names, Change change) {
  change(names, names.stack);
  return names;
}

TensorNames llama_names() {
  return {
      .prefixes = {"model.", ""},
      .token_embedding = {"embed_tokens"},
      .head = {"lm_head"},
      .stack = {.layer = "layers.{}.",
                .attention_norm = "input_layernorm",
                .q = "self_attn.q_proj",
                .k = "self_attn.k_proj",
                .v = "self_attn.v_proj",
                .out = "self_attn.o_proj",
                .q_norm = "self_attn.q_norm",
                .k_norm = "self_attn.k_norm",
                .feed_forward_norm = "post_attention_layernorm",
                .gate = "mlp.gate_proj",
                .up = "mlp.up_proj",
                .down = "mlp.down_proj",
                .final_norm = "norm"},
  };
}

TensorNames bert_names() {
  return {
      .prefixes = {"", "bert."},
      .token_embedding = {"embeddings.word_embeddings"},
      .position_embedding = "embeddings.position_embeddings",
      .token_type_embedding = "embeddings.token_type_embeddings",
      .stack = {.layer = "encoder.layer.{}.",
                .attention_norm = "attention.output.LayerNorm",
                .q = "attention.self.query",
                .k = "attention.self.key",
                .v = "attention.self.value",
                .out = "attention.output.dense",
                .feed_forward_norm = "output.LayerNorm",
                .up = "intermediate.dense",
                .down = "output.dense",
                .embedding_norm = "embeddings.LayerNorm"},
  };
}

}  // namespace

// LLaMA, Mistral, Qwen 2, Qwen 3.
const TensorNames kLlamaNames = llama_names();

const TensorNames kGemma2Names = changed(llama_names(), [](TensorNames&, StackNames& stack) {
  stack.q_norm = stack.k_norm = {};
  stack.attention_post_norm = "post_attention_layernorm";
  stack.feed_forward_norm = "pre_feedforward_layernorm";
  stack.feed_forward_post_norm = "post_feedforward_layernorm";
});

const TensorNames kGemma3Names = changed(kGemma2Names, [](TensorNames& names, StackNames& stack) {
  names.prefixes = {"model.", "", "language_model.model."};
  stack.q_norm = "self_attn.q_norm";
  stack.k_norm = "self_attn.k_norm";
});

const TensorNames kOlmo2Names = changed(llama_names(), [](TensorNames&, StackNames& stack) {
  stack.attention_norm = "post_attention_layernorm";
  stack.feed_forward_norm = "post_feedforward_layernorm";
});

const TensorNames kPhi3Names = changed(llama_names(), [](TensorNames& names, StackNames& stack) {
  names.fused = FusedLayout::concatenated;
  stack.q = stack.k = stack.v = stack.q_norm = stack.k_norm = {};
  stack.fused_qkv = "self_attn.qkv_proj";
  stack.gate = stack.up = {};
  stack.fused_gate_up = "mlp.gate_up_proj";
});

const TensorNames kMixtralNames = changed(llama_names(), [](TensorNames&, StackNames& stack) {
  stack.q_norm = stack.k_norm = {};
  stack.gate = "w1";
  stack.up = "w3";
  stack.down = "w2";
  stack.experts = "block_sparse_moe.experts";
  stack.router = "block_sparse_moe.gate";
});

const TensorNames kGptOssNames = changed(llama_names(), [](TensorNames&, StackNames& stack) {
  stack.q_norm = stack.k_norm = {};
  stack.sinks = "self_attn.sinks";
  stack.gate = stack.up = stack.down = {};
  stack.experts = "mlp.experts";
  stack.router = "mlp.router";
});

const TensorNames kGpt2Names{
    .prefixes = {"transformer.", ""},
    .token_embedding = {"wte"},
    .position_embedding = "wpe",
    .head = {"lm_head"},
    .transposed = true,
    .fused = FusedLayout::concatenated,
    .stack = {.layer = "h.{}.",
              .attention_norm = "ln_1",
              .out = "attn.c_proj",
              .fused_qkv = "attn.c_attn",
              .feed_forward_norm = "ln_2",
              .up = "mlp.c_fc",
              .down = "mlp.c_proj",
              .final_norm = "ln_f"},
};

const TensorNames kGptNeoxNames{
    .prefixes = {"gpt_neox.", ""},
    .token_embedding = {"embed_in"},
    .head = {"embed_out", "lm_head"},
    .fused = FusedLayout::per_head,
    .stack = {.layer = "layers.{}.",
              .attention_norm = "input_layernorm",
              .out = "attention.dense",
              .fused_qkv = "attention.query_key_value",
              .feed_forward_norm = "post_attention_layernorm",
              .up = "mlp.dense_h_to_4h",
              .down = "mlp.dense_4h_to_h",
              .final_norm = "final_layer_norm"},
};

const TensorNames kBloomNames{
    .prefixes = {"transformer.", ""},
    .token_embedding = {"word_embeddings"},
    .head = {"lm_head"},
    .fused = FusedLayout::per_head,
    .stack = {.layer = "h.{}.",
              .attention_norm = "input_layernorm",
              .out = "self_attention.dense",
              .fused_qkv = "self_attention.query_key_value",
              .feed_forward_norm = "post_attention_layernorm",
              .up = "mlp.dense_h_to_4h",
              .down = "mlp.dense_4h_to_h",
              .embedding_norm = "word_embeddings_layernorm",
              .final_norm = "ln_f"},
};

const TensorNames kBertNames = bert_names();

const TensorNames kRobertaNames = changed(bert_names(), [](TensorNames& names, StackNames&) {
  names.prefixes = {"", "roberta."};
});

const TensorNames kDistilBertNames{
    .prefixes = {"", "distilbert."},
    .token_embedding = {"embeddings.word_embeddings"},
    .position_embedding = "embeddings.position_embeddings",
    .stack = {.layer = "transformer.layer.{}.",
              .attention_norm = "sa_layer_norm",
              .q = "attention.q_lin",
              .k = "attention.k_lin",
              .v = "attention.v_lin",
              .out = "attention.out_lin",
              .feed_forward_norm = "output_layer_norm",
              .up = "ffn.lin1",
              .down = "ffn.lin2",
              .embedding_norm = "embeddings.LayerNorm"},
};

// {} is the number of the group.
const TensorNames kAlbertNames{
    .prefixes = {"", "albert."},
    .token_embedding = {"embeddings.word_embeddings"},
    .position_embedding = "embeddings.position_embeddings",
    .token_type_embedding = "embeddings.token_type_embeddings",
    .stack = {.layer = "encoder.albert_layer_groups.{}.albert_layers.0.",
              .attention_norm = "attention.LayerNorm",
              .q = "attention.query",
              .k = "attention.key",
              .v = "attention.value",
              .out = "attention.dense",
              .feed_forward_norm = "full_layer_layer_norm",
              .up = "ffn",
              .down = "ffn_output",
              .embedding_norm = "embeddings.LayerNorm",
              .embedding_projection = "encoder.embedding_hidden_mapping_in"},
};

const TensorNames kModernBertNames{
    .prefixes = {"", "model."},
    .token_embedding = {"embeddings.tok_embeddings"},
    .fused = FusedLayout::concatenated,
    .stack = {.layer = "layers.{}.",
              .attention_norm = "attn_norm",
              .out = "attn.Wo",
              .fused_qkv = "attn.Wqkv",
              .feed_forward_norm = "mlp_norm",
              .down = "mlp.Wo",
              .fused_gate_up = "mlp.Wi",
              .embedding_norm = "embeddings.norm",
              .final_norm = "final_norm"},
};

// gate is wi_0 and up wi_1 where the feed-forward is gated; up is wi where it is not.
const TensorNames kT5Names{
    .prefixes = {"", "transformer."},
    .token_embedding = {"shared", "encoder.embed_tokens", "decoder.embed_tokens"},
    .head = {"lm_head"},
    .stack = {.layer = "decoder.block.{}.",
              .attention_norm = "layer.0.layer_norm",
              .q = "layer.0.SelfAttention.q",
              .k = "layer.0.SelfAttention.k",
              .v = "layer.0.SelfAttention.v",
              .out = "layer.0.SelfAttention.o",
              .cross_norm = "layer.1.layer_norm",
              .cross_q = "layer.1.EncDecAttention.q",
              .cross_k = "layer.1.EncDecAttention.k",
              .cross_v = "layer.1.EncDecAttention.v",
              .cross_out = "layer.1.EncDecAttention.o",
              .feed_forward_norm = "layer.2.layer_norm",
              .gate = "layer.2.DenseReluDense.wi_0",
              .up = "layer.2.DenseReluDense.wi",
              .down = "layer.2.DenseReluDense.wo",
              .final_norm = "decoder.final_layer_norm",
              .relative_bias = "decoder.block.0.layer.0.SelfAttention.relative_attention_bias"},
    .encoder = {.layer = "encoder.block.{}.",
                .attention_norm = "layer.0.layer_norm",
                .q = "layer.0.SelfAttention.q",
                .k = "layer.0.SelfAttention.k",
                .v = "layer.0.SelfAttention.v",
                .out = "layer.0.SelfAttention.o",
                .feed_forward_norm = "layer.1.layer_norm",
                .gate = "layer.1.DenseReluDense.wi_0",
                .up = "layer.1.DenseReluDense.wi",
                .down = "layer.1.DenseReluDense.wo",
                .final_norm = "encoder.final_layer_norm",
                .relative_bias = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias"},
};

const TensorNames kMarianNames{
    .prefixes = {"model.", ""},
    .token_embedding = {"shared", "encoder.embed_tokens", "decoder.embed_tokens"},
    .encoder_embedding = "encoder.embed_tokens",
    .decoder_embedding = "decoder.embed_tokens",
    .head = {"lm_head"},
    .head_bias = "final_logits_bias",
    .stack = {.layer = "decoder.layers.{}.",
              .attention_norm = "self_attn_layer_norm",
              .q = "self_attn.q_proj",
              .k = "self_attn.k_proj",
              .v = "self_attn.v_proj",
              .out = "self_attn.out_proj",
              .cross_norm = "encoder_attn_layer_norm",
              .cross_q = "encoder_attn.q_proj",
              .cross_k = "encoder_attn.k_proj",
              .cross_v = "encoder_attn.v_proj",
              .cross_out = "encoder_attn.out_proj",
              .feed_forward_norm = "final_layer_norm",
              .up = "fc1",
              .down = "fc2",
              .positions = "decoder.embed_positions"},
    .encoder = {.layer = "encoder.layers.{}.",
                .attention_norm = "self_attn_layer_norm",
                .q = "self_attn.q_proj",
                .k = "self_attn.k_proj",
                .v = "self_attn.v_proj",
                .out = "self_attn.out_proj",
                .feed_forward_norm = "final_layer_norm",
                .up = "fc1",
                .down = "fc2",
                .positions = "encoder.embed_positions"},
};

// This project's own language models: stored under the names that Transformer::parameters() gives.
const TensorNames kOwnNames{
    .prefixes = {""},
    .token_embedding = {"embedding"},
    .position_embedding = "position",
    .head = {"head"},
    .stack = {.layer = "stack.layers.{}.",
              .attention_norm = "attention_norm",
              .q = "attention.q_proj",
              .k = "attention.k_proj",
              .v = "attention.v_proj",
              .out = "attention.o_proj",
              .q_norm = "attention.q_norm",
              .k_norm = "attention.k_norm",
              .feed_forward_norm = "feed_forward_norm",
              .gate = "feed_forward.gate_proj",
              .up = "feed_forward.up_proj",
              .down = "feed_forward.down_proj",
              .final_norm = "stack.final_norm"},
};

}  // namespace rootdk
