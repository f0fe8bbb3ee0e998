#include "models/tensor_names.h"

namespace rootdk {

const TensorNames kPhi3Names{
    .prefixes = {"model.", ""},
    .token_embedding = {"embed_tokens"},
    .head = {"lm_head"},
    .fused = FusedLayout::concatenated,
    .stack = {.layer = "layers.{}.",
              .attention_norm = "input_layernorm",
              .out = "self_attn.o_proj",
              .fused_qkv = "self_attn.qkv_proj",
              .feed_forward_norm = "post_attention_layernorm",
              .down = "mlp.down_proj",
              .fused_gate_up = "mlp.gate_up_proj",
              .final_norm = "norm"},
};

const TensorNames kGemma3Names{
    .prefixes = {"model.", "", "language_model.model."},
    .token_embedding = {"embed_tokens"},
    .head = {"lm_head"},
    .stack = {.layer = "layers.{}.",
              .attention_norm = "input_layernorm",
              .attention_post_norm = "post_attention_layernorm",
              .q = "self_attn.q_proj",
              .k = "self_attn.k_proj",
              .v = "self_attn.v_proj",
              .out = "self_attn.o_proj",
              .q_norm = "self_attn.q_norm",
              .k_norm = "self_attn.k_norm",
              .feed_forward_norm = "pre_feedforward_layernorm",
              .feed_forward_post_norm = "post_feedforward_layernorm",
              .gate = "mlp.gate_proj",
              .up = "mlp.up_proj",
              .down = "mlp.down_proj",
              .final_norm = "norm"},
};

const TensorNames kOlmo2Names{
    .prefixes = {"model.", ""},
    .token_embedding = {"embed_tokens"},
    .head = {"lm_head"},
    .stack = {.layer = "layers.{}.",
              .attention_norm = "post_attention_layernorm",
              .q = "self_attn.q_proj",
              .k = "self_attn.k_proj",
              .v = "self_attn.v_proj",
              .out = "self_attn.o_proj",
              .q_norm = "self_attn.q_norm",
              .k_norm = "self_attn.k_norm",
              .feed_forward_norm = "post_feedforward_layernorm",
              .gate = "mlp.gate_proj",
              .up = "mlp.up_proj",
              .down = "mlp.down_proj",
              .final_norm = "norm"},
};

const TensorNames kMixtralNames{
    .prefixes = {"model.", ""},
    .token_embedding = {"embed_tokens"},
    .head = {"lm_head"},
    .stack = {.layer = "layers.{}.",
              .attention_norm = "input_layernorm",
              .q = "self_attn.q_proj",
              .k = "self_attn.k_proj",
              .v = "self_attn.v_proj",
              .out = "self_attn.o_proj",
              .feed_forward_norm = "post_attention_layernorm",
              .gate = "w1",
              .up = "w3",
              .down = "w2",
              .experts = "block_sparse_moe.experts",
              .router = "block_sparse_moe.gate",
              .final_norm = "norm"},
};

const TensorNames kRobertaNames{
    .prefixes = {"", "roberta."},
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

}  // namespace rootdk
