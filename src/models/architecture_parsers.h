#pragma once

// How the config.json of each architecture becomes a TransformerConfig: the functions of the table in
// architectures.cpp.

#include "models/config_parts.h"

namespace rootdk {

// What LLaMA, Mistral, Qwen, Phi-3, Gemma, OLMo 2, Mixtral and gpt_oss share.
TransformerConfig parse_llama_like(const JsonFields& fields, std::int64_t default_head_dim, bool default_tied);
TransformerConfig parse_bert(const JsonFields& fields);

// decoder_architectures.cpp
TransformerConfig parse_qwen2(const JsonFields& fields);
TransformerConfig parse_qwen3(const JsonFields& fields);
TransformerConfig parse_phi3(const JsonFields& fields);
TransformerConfig parse_gemma3(const JsonFields& fields);
TransformerConfig parse_olmo2(const JsonFields& fields);
TransformerConfig parse_mixtral(const JsonFields& fields);

// encoder_architectures.cpp
TransformerConfig parse_roberta(const JsonFields& fields);
TransformerConfig parse_distilbert(const JsonFields& fields);
TransformerConfig parse_albert(const JsonFields& fields);
TransformerConfig parse_modernbert(const JsonFields& fields);

}  // namespace rootdk
