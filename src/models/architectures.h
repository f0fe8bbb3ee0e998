#pragma once

// The architectures: how each config.json becomes a TransformerConfig, and under which names each checkpoint keeps its
// tensors. This table is all that tells them apart.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/config.h"

namespace rootdk {

class JsonFields;

// Where a checkpoint keeps a stack. Names stand behind the layer's prefix and before ".weight" and ".bias".
struct StackNames {
  std::string_view layer;  // "h.{}.": {} is the number of the layer, or of its group where layers share weights
  std::string_view attention_norm, attention_post_norm{};
  std::string_view q{}, k{}, v{}, out;
  std::string_view fused_qkv{};  // instead of q, k, v
  std::string_view q_norm{}, k_norm{}, sinks{};
  std::string_view cross_norm{}, cross_q{}, cross_k{}, cross_v{}, cross_out{};
  std::string_view feed_forward_norm, feed_forward_post_norm{};
  std::string_view gate{}, up{}, down{};
  std::string_view fused_gate_up{};  // instead of gate and up: all of one, then all of the other
  // gate and up interleaved in experts + ".gate_up_proj", ".down_proj"; or, where gate is given, behind experts.{}
  std::string_view experts{}, router{};
  // Outside the layers:
  std::string_view embedding_norm{}, embedding_projection{}, final_norm{}, relative_bias{}, positions{};
};

enum class FusedLayout : std::int32_t {
  none = 0,
  concatenated = 1,  // all of q, then k, then v (GPT-2, Phi-3)
  per_head = 2,      // q, k, v of each head in turn (GPT-NeoX, BLOOM)
};

struct TensorNames {
  std::vector<std::string_view> prefixes;         // tried in order: checkpoints of the bare model leave it out
  std::vector<std::string_view> token_embedding;  // alternatives
  std::string_view encoder_embedding{}, decoder_embedding{};  // where they are separate
  std::string_view position_embedding{}, token_type_embedding{};
  std::vector<std::string_view> head{};  // never prefixed
  std::string_view head_bias{};          // never prefixed; the tensor's whole name
  bool transposed = false;               // weights stored [in, out] (GPT-2)
  FusedLayout fused = FusedLayout::none;
  StackNames stack;
  StackNames encoder{};
};

struct Architecture {
  std::string_view model_type;
  TransformerConfig (*parse)(const JsonFields& fields);
  const TensorNames* names;
};

std::span<const Architecture> architectures();

}  // namespace rootdk
