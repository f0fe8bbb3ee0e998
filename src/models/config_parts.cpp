#include "models/config_parts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

namespace rootdk {
namespace {

constexpr std::array<std::pair<std::string_view, Activation>, 12> kActivationNames = {{
    {"relu", Activation::relu},
    {"gelu", Activation::gelu},
    {"gelu_python", Activation::gelu},
    {"gelu_new", Activation::gelu_tanh},
    {"gelu_fast", Activation::gelu_tanh},
    {"gelu_pytorch_tanh", Activation::gelu_tanh},
    {"gelu_tanh", Activation::gelu_tanh},
    {"quick_gelu", Activation::gelu_quick},
    {"gelu_quick", Activation::gelu_quick},
    {"silu", Activation::silu},
    {"swish", Activation::silu},
    {"tanh", Activation::tanh},
}};

// The object with the scaling, or null: rope_parameters is the present spelling, rope_scaling the older one.
const Json* scaling_object(const JsonFields& fields) {
  const Json* found = fields.find({"rope_parameters", "rope_scaling"});
  if (found) {
    require(found->is_object(), fields.where(), ": rope_parameters must be an object, not ", JsonFields::shown(*found));
    for (const auto& [key, value] : found->items()) {
      require(!value.is_object(), fields.where(), ": rope_parameters per layer type (", key, ") are not supported");
    }
  }
  return found;
}

double positive(const JsonFields& fields, FieldNames names, double otherwise) {
  const double value = fields.number(names, otherwise);
  require(value > 0, fields.where(), ": ", *names.begin(), " ", value, " must be positive");
  return value;
}

// The factor on cos and sin; mscale and mscale_all_dim are DeepSeek's spelling of it.
double yarn_attention_factor(const JsonFields& scaling, double factor) {
  auto of = [&](double mscale) { return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0; };
  if (scaling.has("attention_factor")) return positive(scaling, {"attention_factor"}, 1.0);
  const double mscale = scaling.number({"mscale"}, 0.0), all = scaling.number({"mscale_all_dim"}, 0.0);
  return mscale != 0.0 && all != 0.0 ? of(mscale) / of(all) : of(1.0);
}

void read_scaling(RopeConfig& rope, const JsonFields& fields, const JsonFields& scaling) {
  RopeParams& params = rope.params;
  const std::string type = scaling.text({"rope_type", "type"}, "default");
  if (type == "default") return;
  params.factor = positive(scaling, {"factor"}, 1.0);
  params.original_max_position = rope.max_position =
      scaling.size({"original_max_position_embeddings"},
                   fields.size({"original_max_position_embeddings"}, fields.size({"max_position_embeddings"}, 2048)));
  if (type == "linear") {
    params.scaling = RopeScaling::linear;
  } else if (type == "dynamic") {
    rope.dynamic = true;
    rope.dynamic_factor = std::exchange(params.factor, 1.0);
  } else if (type == "yarn") {
    params.scaling = RopeScaling::yarn;
    params.beta_fast = positive(scaling, {"beta_fast"}, 32.0);
    params.beta_slow = positive(scaling, {"beta_slow"}, 1.0);
    params.truncate = scaling.boolean({"truncate"}, true);
    params.attention_factor = yarn_attention_factor(scaling, params.factor);
  } else if (type == "llama3") {
    params.scaling = RopeScaling::llama3;
    params.low_freq_factor = positive(scaling, {"low_freq_factor"}, 1.0);
    params.high_freq_factor = positive(scaling, {"high_freq_factor"}, 4.0);
    require(params.high_freq_factor > params.low_freq_factor, fields.where(), ": high_freq_factor ",
            params.high_freq_factor, " must be above low_freq_factor ", params.low_freq_factor);
  } else {
    fail(fields.where(), ": rope_type \"", type,
         "\" is not supported; supported: default, linear, dynamic, yarn, llama3");
  }
}

Scale scale_named(const JsonFields& fields, const std::string& name) {
  if (name == "none") return Scale::none();
  if (name == "1/d") return Scale::inverse_head_dim();
  if (name == "1/sqrt(d)") return Scale::inverse_sqrt_head_dim();
  fail(fields.where(), ": scale \"", name, "\" is not supported; supported: none, 1/d, 1/sqrt(d)");
}

}  // namespace

TransformerConfig basic_config(const JsonFields& fields, FieldNames width) {
  TransformerConfig config;
  config.d_model = fields.size(width);
  config.vocab_size = fields.size({"vocab_size"});
  return config;
}

std::int64_t layer_count(const JsonFields& fields, FieldNames names) {
  constexpr std::int64_t kMost = 4096;
  const std::int64_t layers = fields.size(names);
  require(layers <= kMost, fields.where(), ": ", *names.begin(), " ", layers, " passes the ", kMost,
          " layers that are supported");
  return layers;
}

BlockConfig layer_norm_block(double eps) {
  BlockConfig block;
  block.norm = {.kind = NormKind::layer, .eps = eps};
  block.norm_bias = true;
  return block;
}

void fill_stack(StackConfig& stack, const BlockConfig& block, std::int64_t layers) {
  stack.blocks.assign(static_cast<std::size_t>(layers), block);
  stack.norm = block.norm;
  stack.norm_bias = block.norm_bias;
  stack.final_norm = true;
}

void check_heads(const JsonFields& fields, const MultiHeadConfig& attention, std::string_view width_name,
                 std::string_view heads_name) {
  if (attention.kv_heads > 0) {
    require(attention.heads % attention.kv_heads == 0, fields.where(), ": ", heads_name, " ", attention.heads,
            " is not a multiple of num_key_value_heads ", attention.kv_heads);
  }
  require(attention.head_dim > 0 || attention.d_model % attention.heads == 0, fields.where(), ": ", width_name, " ",
          attention.d_model, " is not a multiple of ", heads_name, " ", attention.heads);
}

Activation activation_named(const std::string& where, std::string_view field, const std::string& name) {
  std::string supported;
  for (const auto& [known, activation] : kActivationNames) {
    if (name == known) return activation;
    supported += (supported.empty() ? "" : ", ") + std::string(known);
  }
  fail(where, ": ", field, " \"", name, "\" is not supported; supported: ", supported);
}

Activation activation(const JsonFields& fields, FieldNames names, const std::string& otherwise) {
  return activation_named(fields.where(), *names.begin(), fields.text(names, otherwise));
}

RopeConfig rope(const JsonFields& fields, std::int64_t head_dim, double share) {
  RopeConfig rope;
  const Json* object = scaling_object(fields);
  const Json empty = Json::object();
  const JsonFields scaling(object ? *object : empty, fields.where());
  rope.params.base = positive(scaling, {"rope_theta"}, positive(fields, {"rope_theta", "rotary_emb_base"}, 10000.0));
  share = positive(scaling, {"partial_rotary_factor"}, fields.number({"partial_rotary_factor"}, share));
  rope.params.rotary_dim = static_cast<std::int64_t>(static_cast<double>(head_dim) * share);
  require(share <= 1.0 && rope.params.rotary_dim >= 2 && rope.params.rotary_dim % 2 == 0, fields.where(),
          ": partial_rotary_factor ", share, " of head_dim ", head_dim, " leaves ", rope.params.rotary_dim,
          " dimensions to rotate, which must be even and at least 2");
  read_scaling(rope, fields, scaling);
  return rope;
}

RopeConfig layer_rope(const JsonFields& fields, std::int64_t head_dim, const std::string& kind, FieldNames names,
                      double usual_base) {
  Json own = fields.object();
  const Json* found = fields.find({"rope_parameters"});
  if (found && found->is_object() && found->contains(kind)) {
    own.set("rope_parameters", *found->find(kind));
  } else if (!found || kind != "full_attention") {
    own.erase("rope_parameters");
    if (kind != "full_attention") own.erase("rope_scaling");
    own.set("rope_theta", Json(fields.number(names, usual_base)));
  }
  return rope(JsonFields(own, fields.where()), head_dim, 1.0);
}

Json without_layer_ropes(const JsonFields& fields) {
  Json plain = fields.object();
  const Json* found = fields.find({"rope_parameters"});
  if (found &&
      std::ranges::any_of(found->items(), [](const Json::Member& member) { return member.value.is_object(); })) {
    plain.erase("rope_parameters");
  }
  return plain;
}

std::vector<bool> sliding_layers(const JsonFields& fields, std::size_t layers,
                                 const std::function<bool(std::size_t layer)>& slides) {
  const Json* types = fields.find({"layer_types"});
  if (types) {
    require(types->is_array() && types->size() == layers, fields.where(), ": layer_types must list the ", layers,
            " layers");
  }
  std::vector<bool> sliding;
  for (std::size_t layer = 0; layer < layers; ++layer) {
    if (!types) {
      sliding.push_back(slides(layer));
      continue;
    }
    const Json& type = (*types)[layer];
    sliding.push_back(type == "sliding_attention");
    require(sliding.back() || type == "full_attention", fields.where(), ": layer_types ", JsonFields::shown(type),
            " is not supported; supported: full_attention, sliding_attention");
  }
  return sliding;
}

void apply_windows(const JsonFields& fields, StackConfig& stack, std::int64_t usual,
                   const std::function<bool(std::size_t layer)>& slides) {
  const std::vector<bool> sliding = sliding_layers(fields, stack.blocks.size(), slides);
  const bool none = fields.object().contains("sliding_window") && !fields.has("sliding_window");
  if (none) return;
  const std::int64_t window = fields.size({"sliding_window"}, usual);
  for (std::size_t layer = 0; layer < stack.blocks.size(); ++layer) {
    // A window of n keeps the query's own key and n - 1 before it.
    if (sliding[layer]) stack.blocks[layer].attention.window_left = window - 1;
  }
}

TransformerConfig parse_language_model(const JsonFields& fields) {
  LanguageModelConfig settings;
  settings.vocab_size = fields.size({"vocab_size"});
  settings.d_model = fields.size({"d_model"});
  settings.layers = layer_count(fields, {"layers"});
  settings.heads = fields.size({"heads"});
  settings.kv_heads = fields.size({"kv_heads"}, settings.heads);
  settings.d_ff = fields.size({"d_ff"});
  settings.context = fields.size({"context"});
  settings.position_encoding = fields.text({"position_encoding"}, settings.position_encoding);
  settings.scale = fields.text({"scale"}, settings.scale);
  settings.qk_norm = fields.boolean({"qk_norm"}, false);
  settings.softcap = fields.number({"softcap"}, 0.0);
  require(settings.softcap >= 0, fields.where(), ": softcap ", settings.softcap, " must not be negative");
  check_heads(fields, {.d_model = settings.d_model, .heads = settings.heads, .kv_heads = settings.kv_heads}, "d_model",
              "heads");
  scale_named(fields, settings.scale);
  return make_config(settings);
}

TransformerConfig make_config(const LanguageModelConfig& settings) {
  const Json none = Json::object();
  const JsonFields fields(none, "language model");
  require(settings.heads > 0 && settings.d_model % settings.heads == 0, "language model: d_model ", settings.d_model,
          " is not a multiple of heads ", settings.heads);
  TransformerConfig config;
  config.architecture = "rootdk_lm";
  config.trained_context = settings.context;
  config.d_model = settings.d_model;
  config.vocab_size = config.decoder_vocab_size = settings.vocab_size;
  config.tied_head = true;
  BlockConfig block;
  block.norm = {.kind = NormKind::rms, .eps = 1e-5};
  block.attention = {.d_model = settings.d_model, .heads = settings.heads, .kv_heads = settings.kv_heads};
  block.attention.causal = true;
  block.attention.scale = scale_named(fields, settings.scale);
  block.attention.softcap = settings.softcap;
  if (settings.qk_norm) block.attention.qk_norm = block.norm;
  const std::string& encoding = settings.position_encoding;
  if (encoding == "rope") {
    const std::int64_t head_dim = settings.d_model / settings.heads;
    require(head_dim % 2 == 0, "language model: rope needs an even head_dim, and d_model ", settings.d_model,
            " / heads ", settings.heads, " is ", head_dim);
    config.positions = PositionEncoding::rotary;
    block.attention.rotary = true;
  } else if (encoding == "learned") {
    config.positions = PositionEncoding::learned;
    config.max_position = settings.context;
  } else if (encoding == "sinusoidal") {
    require(settings.d_model % 2 == 0, "language model: sinusoidal positions need an even d_model, not ",
            settings.d_model);
    config.positions = PositionEncoding::sinusoidal;
    config.embedding_scale =
        std::sqrt(static_cast<double>(settings.d_model));  // beside sines of size 1, as in the paper
  } else if (encoding == "alibi") {
    block.attention.alibi = true;
  } else {
    require(encoding == "none", "language model: position_encoding \"", encoding,
            "\" is not supported; supported: sinusoidal, learned, rope, alibi, none");
  }
  const std::int64_t d_ff = settings.d_ff ? settings.d_ff : (settings.d_model * 8 / 3 + 7) / 8 * 8;
  block.feed_forward = {.d_model = settings.d_model, .d_ff = d_ff, .activation = Activation::silu, .gated = true};
  fill_stack(config.stack, block, settings.layers);
  return config;
}

std::string config_json(const LanguageModelConfig& settings) {
  const TransformerConfig config = make_config(settings);
  const BlockConfig& block = config.stack.blocks.at(0);
  return nlohmann::json{{"model_type", "rootdk_lm"},
                        {"vocab_size", settings.vocab_size},
                        {"d_model", settings.d_model},
                        {"layers", settings.layers},
                        {"heads", settings.heads},
                        {"kv_heads", settings.kv_heads ? settings.kv_heads : settings.heads},
                        {"d_ff", block.feed_forward.d_ff},
                        {"context", settings.context},
                        {"position_encoding", settings.position_encoding},
                        {"scale", settings.scale},
                        {"qk_norm", settings.qk_norm},
                        {"softcap", settings.softcap}}
      .dump(2);
}

}  // namespace rootdk
