#pragma once

// The pieces that config.json files share, read with messages that name the field.

#include <functional>

#include "models/architectures.h"
#include "models/json_fields.h"

namespace rootdk {

using FieldNames = std::initializer_list<std::string_view>;

// vocab_size and the model's width under one of the names.
TransformerConfig basic_config(const JsonFields& fields, FieldNames width);
std::int64_t layer_count(const JsonFields& fields, FieldNames names);
BlockConfig layer_norm_block(double eps);
// `layers` equal blocks with their norm behind the last.
void fill_stack(StackConfig& stack, const BlockConfig& block, std::int64_t layers);
void check_heads(const JsonFields& fields, const MultiHeadConfig& attention, std::string_view width_name,
                 std::string_view heads_name);

Activation activation(const JsonFields& fields, FieldNames names, const std::string& otherwise);
Activation activation_named(const std::string& where, std::string_view field, const std::string& name);

// rope_parameters, or rope_theta with rope_scaling, or GPT-NeoX's rotary_emb_base; `share` of head_dim is rotated where
// no partial_rotary_factor says otherwise.
RopeConfig rope(const JsonFields& fields, std::int64_t head_dim, double share);

// sliding_window on the layers that layer_types names or, without it, that `slides` picks. A window that is left out
// has the usual size of the architecture; null says that there is none.
void apply_windows(const JsonFields& fields, StackConfig& stack, std::int64_t usual,
                   const std::function<bool(std::size_t layer)>& slides);

// Which layers slide: those that layer_types names or, without it, that `slides` picks.
std::vector<bool> sliding_layers(const JsonFields& fields, std::size_t layers,
                                 const std::function<bool(std::size_t layer)>& slides);

// RoPE of one kind of layers ("full_attention"): rope_parameters of that kind or, in older files, the base under
// `names`.
RopeConfig layer_rope(const JsonFields& fields, std::int64_t head_dim, const std::string& kind, FieldNames names,
                      double usual_base);
// The fields without rope_parameters for kinds of layers.
Json without_layer_ropes(const JsonFields& fields);

TransformerConfig parse_language_model(const JsonFields& fields);

}  // namespace rootdk
