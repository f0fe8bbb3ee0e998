#pragma once

// The one configurable transformer's description, and how config.json files become it.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "layers/block.h"

namespace rootdk {

enum class PositionEncoding : std::int32_t {
  none = 0,        // or inside the attention: ALiBi, T5's table
  learned = 1,     // a table added to the input
  sinusoidal = 2,  // added to the input
  rotary = 3,
};

// RoPE of a model; "dynamic" stretches the base only for sequences longer than it was trained on.
struct RopeConfig {
  RopeParams params;
  bool dynamic = false;
  double dynamic_factor = 1.0;
  std::int64_t max_position = 0;
};

// A stack of blocks with what stands before and behind it.
struct StackConfig {
  std::vector<BlockConfig> blocks{};
  std::optional<T5BucketParams> relative{};  // one table, shared by all blocks
  std::int64_t stored_positions = 0;  // rows of a table of its own in the checkpoint (older Marian files); 0: none
  std::int64_t groups = 0;            // layers of a group share their weights (ALBERT); 0: none do
  bool embedding_norm = false;        // behind the embeddings: BERT, BLOOM
  bool final_norm = false;
  NormParams norm{};
  bool norm_bias = false;
};

enum class ModelOutput : std::int32_t { logits = 0, hidden_states = 1 };

struct TransformerConfig {
  std::string architecture;  // model_type
  std::int64_t d_model = 0, vocab_size = 0;
  std::int64_t decoder_vocab_size = 0;  // of the logits; differs from vocab_size only with separate embeddings
  std::int64_t max_position = 0;        // rows of a learned or stored table; 0: no limit
  std::int64_t trained_context = 0;     // tokens of a training sequence, as the config names them; 0: it does not
  std::int64_t token_types = 0;
  PositionEncoding positions = PositionEncoding::none;
  SinusoidalLayout sinusoidal = SinusoidalLayout::interleaved;
  double embedding_scale = 1.0;
  RopeConfig rope;
  std::optional<RopeConfig> local_rope;  // of the layers that slide, where they have one of their own
  std::int64_t position_offset = 0;      // rows of the learned table before the first position (RoBERTa)
  std::int64_t embedding_size = 0;       // width of the embeddings before a projection to d_model (ALBERT); 0: none
  std::optional<StackConfig> encoder;    // encoder-decoder models
  StackConfig stack;                     // the decoder, or the only stack
  ModelOutput output = ModelOutput::logits;
  bool tied_head = false;            // the head is the embedding table
  double head_scale = 1.0;           // on the hidden states before the head (T5)
  double head_softcap = 0.0;         // on the logits (Gemma 2)
  bool head_bias = false;            // final_logits_bias (Marian)
  bool separate_embeddings = false;  // encoder and decoder have tables of their own (Marian)
  DType stored_type = DType::f32;    // of the checkpoint's weights; what a cache of keys takes where none is asked for
  WeightMemory memory = WeightMemory::own;  // of the matrices

  // Generation.
  std::int64_t decoder_start = -1;
  std::int64_t forced_end = -1;  // the last token of a generation of full length
  std::int64_t begin_token = -1;
  std::vector<std::int32_t> end_tokens;
};

std::vector<std::string_view> supported_architectures();

// The settings of this project's own language models ("model_type": "rootdk_lm"), which `rootdk train` makes.
struct LanguageModelConfig {
  std::int64_t vocab_size = 0, d_model = 128, layers = 4, heads = 4;
  std::int64_t kv_heads = 0;  // 0: as many as heads
  std::int64_t d_ff = 0;      // 0: 8/3 of d_model, rounded up to a multiple of 8
  std::int64_t context = 128;
  std::string position_encoding = "rope";  // sinusoidal, learned, rope, alibi, none
  std::string scale = "1/sqrt(d)";         // none, 1/d, 1/sqrt(d)
  bool qk_norm = false;
  double softcap = 0.0;
};
TransformerConfig make_config(const LanguageModelConfig& settings);
std::string config_json(const LanguageModelConfig& settings);  // the config.json that parse_config reads back

// Reads config.json's text. Throws rootdk::Error that names the field, its value and what is supported; `where` is what
// messages call the file.
TransformerConfig parse_config(std::string_view json_text, const std::string& where);

// Takes eos_token_id, forced_eos_token_id and decoder_start_token_id from generation_config.json's text.
void apply_generation_config(TransformerConfig& config, std::string_view json_text, const std::string& where);

// config.json and, where it is there, generation_config.json of a folder.
TransformerConfig load_config(const std::filesystem::path& folder);

}  // namespace rootdk
