#include <array>
#include <string>

#include "core/check.h"
#include "models/checkpoint.h"

namespace rootdk {
namespace {

const TensorNames* names_of(const TransformerConfig& config) {
  for (const Architecture& architecture : architectures()) {
    if (architecture.model_type == config.architecture) return architecture.names;
  }
  fail("checkpoint: architecture \"", config.architecture, "\" is not supported");
}

// Collects the bindings of one model.
class Binder {
 public:
  Binder(const TransformerConfig& config, const TensorNames& names, const Checkpoint& checkpoint)
      : config_(config), names_(names), checkpoint_(checkpoint), prefix_(choose_prefix()) {}

  std::vector<Binding> all() {
    bind_embeddings();
    if (config_.encoder) bind_stack(*config_.encoder, names_.encoder, "encoder");
    bind_stack(config_.stack, names_.stack, "stack");
    bind_head();
    return std::move(bindings_);
  }

 private:
  // The first prefix under which the token embedding is found; else the first.
  std::string choose_prefix() const {
    for (const std::string_view prefix : names_.prefixes) {
      for (const std::string_view name : names_.token_embedding) {
        if (checkpoint_.contains(std::string(prefix) + std::string(name) + ".weight")) return std::string(prefix);
      }
    }
    return std::string(names_.prefixes.front());
  }

  // The name that is in the file: older BERT checkpoints say gamma and beta.
  std::string present(const std::string& name) const {
    if (checkpoint_.contains(name)) return name;
    for (const auto& [now, then] : {std::pair{".weight", ".gamma"}, std::pair{".bias", ".beta"}}) {
      if (!name.ends_with(now)) continue;
      const std::string older = name.substr(0, name.size() - std::string_view(now).size()) + then;
      if (checkpoint_.contains(older)) return older;
    }
    return name;
  }

  void add(const std::string& parameter, const std::string& stored, std::vector<std::int64_t> shape) {
    bindings_.push_back({.parameter = parameter, .stored = present(stored), .stored_shape = std::move(shape)});
  }

  void add_matrix(const std::string& parameter, const std::string& stored, std::int64_t out, std::int64_t in) {
    Binding binding{.parameter = parameter, .stored = stored, .stored_shape = {out, in}};
    if (names_.transposed) binding.stored_shape = {in, out};
    binding.transposed = names_.transposed;
    bindings_.push_back(std::move(binding));
  }

  void add_linear(const std::string& parameter, const std::string& stored, std::int64_t out, std::int64_t in,
                  bool bias) {
    add_matrix(parameter + ".weight", stored + ".weight", out, in);
    if (bias) add(parameter + ".bias", stored + ".bias", {out});
  }

  void add_norm(const std::string& parameter, const std::string& stored, const StackConfig& stack) {
    add_norm(parameter, stored, stack, config_.d_model);
  }
  void add_norm(const std::string& parameter, const std::string& stored, const StackConfig& stack, std::int64_t width) {
    add(parameter + ".weight", stored + ".weight", {width});
    if (stack.norm_bias) add(parameter + ".bias", stored + ".bias", {width});
  }

  std::int64_t embedding_width() const { return config_.embedding_size > 0 ? config_.embedding_size : config_.d_model; }

  void bind_embeddings() {
    auto first_present = [&](const auto& names) {
      for (const std::string_view name : names) {
        if (checkpoint_.contains(prefix_ + std::string(name) + ".weight")) return prefix_ + std::string(name);
      }
      return prefix_ + std::string(*names.begin());
    };
    const std::int64_t d = embedding_width();
    if (config_.separate_embeddings) {
      add("embedding.weight", prefix_ + std::string(names_.encoder_embedding) + ".weight", {config_.vocab_size, d});
      add("decoder_embedding.weight", prefix_ + std::string(names_.decoder_embedding) + ".weight",
          {config_.decoder_vocab_size, d});
    } else {
      add("embedding.weight", first_present(names_.token_embedding) + ".weight", {config_.vocab_size, d});
    }
    if (config_.positions == PositionEncoding::learned) {
      add("position.weight", prefix_ + std::string(names_.position_embedding) + ".weight",
          {config_.max_position + config_.position_offset, d});
    }
    if (config_.token_types > 0) {
      add("token_type.weight", prefix_ + std::string(names_.token_type_embedding) + ".weight",
          {config_.token_types, d});
    }
    if (config_.embedding_size > 0) {
      add_linear("embedding_projection", prefix_ + std::string(names_.stack.embedding_projection), config_.d_model, d,
                 true);
    }
  }

  void bind_head() {
    if (config_.output == ModelOutput::hidden_states) return;
    if (!config_.tied_head) {
      std::string name(names_.head.front());
      for (const std::string_view candidate : names_.head) {
        if (checkpoint_.contains(std::string(candidate) + ".weight")) name = candidate;
      }
      add("head.weight", name + ".weight", {config_.decoder_vocab_size, config_.d_model});
    }
    if (config_.head_bias) add("head.bias", std::string(names_.head_bias), {1, config_.decoder_vocab_size});
  }

  void bind_stack(const StackConfig& stack, const StackNames& names, const std::string& own) {
    if (stack.embedding_norm) {
      add_norm(own + ".embedding_norm", prefix_ + std::string(names.embedding_norm), stack, embedding_width());
    }
    if (stack.stored_positions > 0) {
      add(own + ".positions.weight", prefix_ + std::string(names.positions) + ".weight",
          {stack.stored_positions, config_.d_model});
    }
    if (stack.relative) {
      add(own + ".relative.weight", prefix_ + std::string(names.relative_bias) + ".weight",
          {stack.relative->buckets, stack.blocks.front().attention.heads});
    }
    for (std::size_t layer = 0; layer < stack.blocks.size(); ++layer) {
      bind_block(stack, stack.blocks[layer], names, own + ".layers." + std::to_string(layer),
                 place_of(names, stored_layer(stack, layer)));
    }
    refuse_more_layers(stack, names);
    if (stack.final_norm) add_norm(own + ".final_norm", prefix_ + std::string(names.final_norm), stack);
  }

  void bind_block(const StackConfig& stack, const BlockConfig& block, const StackNames& names, const std::string& own,
                  const std::string& place) {
    auto at = [&](std::string_view name) { return place + std::string(name); };
    if (block.attention_norm) add_norm(own + ".attention_norm", at(names.attention_norm), stack);
    bind_attention(block.attention, own + ".attention", names, place);
    if (block.placement == NormPlacement::sandwich) {
      add_norm(own + ".attention_post_norm", at(names.attention_post_norm), stack);
      add_norm(own + ".feed_forward_post_norm", at(names.feed_forward_post_norm), stack);
    }
    if (block.cross_attention) {
      StackNames cross = names;
      cross.q = names.cross_q;
      cross.k = names.cross_k;
      cross.v = names.cross_v;
      cross.out = names.cross_out;
      add_norm(own + ".cross_norm", at(names.cross_norm), stack);
      bind_attention(block.attention, own + ".cross", cross, place);
    }
    add_norm(own + ".feed_forward_norm", at(names.feed_forward_norm), stack);
    bind_feed_forward(block.feed_forward, own + ".feed_forward", names, place);
  }

  void bind_attention(const MultiHeadConfig& attention, const std::string& own, const StackNames& names,
                      const std::string& place) {
    auto at = [&](std::string_view name) { return place + std::string(name); };
    const std::int64_t d = config_.d_model;
    const std::int64_t kv_heads = attention.kv_heads ? attention.kv_heads : attention.heads;
    const std::int64_t head_dim = attention.head_dim ? attention.head_dim : d / attention.heads;
    const std::int64_t inner = attention.heads * head_dim, kv_inner = kv_heads * head_dim;
    if (names_.fused != FusedLayout::none) {
      bind_fused(own, at(names.fused_qkv), {inner, kv_inner, kv_inner}, head_dim, attention.qkv_bias);
    } else {
      add_linear(own + ".q_proj", at(names.q), inner, d, attention.qkv_bias);
      add_linear(own + ".k_proj", at(names.k), kv_inner, d, attention.qkv_bias);
      add_linear(own + ".v_proj", at(names.v), kv_inner, d, attention.qkv_bias);
    }
    add_linear(own + ".o_proj", at(names.out), d, inner, attention.out_bias);
    if (attention.qk_norm) {
      const bool all = attention.qk_norm_over_heads;
      add(own + ".q_norm.weight", at(names.q_norm) + ".weight", {all ? inner : head_dim});
      add(own + ".k_norm.weight", at(names.k_norm) + ".weight", {all ? kv_inner : head_dim});
    }
    if (attention.sinks) add(own + ".sinks", at(names.sinks), {attention.heads});
  }

  // sizes: rows of q, k and v.
  void bind_fused(const std::string& own, const std::string& stored, const std::array<std::int64_t, 3>& sizes,
                  std::int64_t head_dim, bool bias) {
    const char* parts[] = {".q_proj", ".k_proj", ".v_proj"};
    const std::int64_t all = sizes[0] + sizes[1] + sizes[2];
    std::int64_t offset = 0;
    for (std::size_t part = 0; part < 3; ++part) {
      const RowMap rows =
          names_.fused == FusedLayout::concatenated
              ? RowMap{.offset = offset}
              : RowMap{.offset = static_cast<std::int64_t>(part) * head_dim, .group = head_dim, .stride = 3 * head_dim};
      offset += sizes[part];
      add_matrix(own + parts[part] + ".weight", stored + ".weight", all, config_.d_model);
      bindings_.back().rows = rows;
      if (!bias) continue;
      add(own + parts[part] + ".bias", stored + ".bias", {all});
      bindings_.back().rows = rows;
    }
  }

  // Layers that share weights are bound to the same tensors.
  std::string place_of(const StackNames& names, std::size_t layer) const {
    const std::size_t hole = names.layer.find("{}");
    return prefix_ + std::string(names.layer.substr(0, hole)) + std::to_string(layer) +
           std::string(names.layer.substr(hole + 2));
  }
  // A part of a model would run without a word.
  void refuse_more_layers(const StackConfig& stack, const StackNames& names) const {
    const std::size_t asked = stack.groups > 0 ? static_cast<std::size_t>(stack.groups) : stack.blocks.size();
    std::size_t found = asked;
    while (checkpoint_.contains_below(place_of(names, found))) ++found;
    require(found == asked, checkpoint_.where(), ": the config asks for ", asked, stack.groups > 0 ? " groups of" : "",
            " layers, and the weights have ", found, " (", place_of(names, found - 1), "*)");
  }
  std::size_t stored_layer(const StackConfig& stack, std::size_t layer) const {
    return stack.groups > 0 ? layer * static_cast<std::size_t>(stack.groups) / stack.blocks.size() : layer;
  }

  void bind_feed_forward(const FeedForwardConfig& config, const std::string& own, const StackNames& names,
                         const std::string& place) {
    if (config.experts > 0) {
      return names.gate.empty() ? bind_experts(config, own, names, place)
                                : bind_single_experts(config, own, names, place);
    }
    if (!names.fused_gate_up.empty()) {
      for (const char* part : {".gate_proj", ".up_proj"}) {
        add_linear(own + part, place + std::string(names.fused_gate_up), 2 * config.d_ff, config.d_model, config.bias);
        const std::int64_t offset = part == std::string_view(".up_proj") ? config.d_ff : 0;
        bindings_.back().rows = {.offset = offset};
        if (config.bias) bindings_[bindings_.size() - 2].rows = {.offset = offset};
      }
      return add_linear(own + ".down_proj", place + std::string(names.down), config.d_model, config.d_ff, config.bias);
    }
    std::string up = place + std::string(names.up);
    if (config.gated) {
      const std::string gate = place + std::string(names.gate);
      if (gate.ends_with("_0")) up = gate.substr(0, gate.size() - 1) + "1";  // T5: wi_0 and wi_1
      add_linear(own + ".gate_proj", gate, config.d_ff, config.d_model, config.bias);
    }
    add_linear(own + ".up_proj", up, config.d_ff, config.d_model, config.bias);
    add_linear(own + ".down_proj", place + std::string(names.down), config.d_model, config.d_ff, config.bias);
  }

  // All experts of a layer in one tensor, stored [experts, in, out], gate and up in turn.
  void bind_experts(const FeedForwardConfig& config, const std::string& own, const StackNames& names,
                    const std::string& place) {
    const std::string stored = place + std::string(names.experts);
    for (std::int64_t expert = 0; expert < config.experts; ++expert) {
      auto part = [&](const char* projection, const char* name, std::int64_t out, std::int64_t in, RowMap rows) {
        const std::string parameter = own + ".experts." + std::to_string(expert) + projection;
        bindings_.push_back({.parameter = parameter + ".weight",
                             .stored = stored + name,
                             .stored_shape = {config.experts, in, out},
                             .rows = rows,
                             .transposed = true,
                             .entry = expert});
        bindings_.push_back({.parameter = parameter + ".bias",
                             .stored = stored + name + "_bias",
                             .stored_shape = {config.experts, out},
                             .rows = rows,
                             .entry = expert});
      };
      part(".gate_proj", ".gate_up_proj", 2 * config.d_ff, config.d_model, {.offset = 0, .group = 1, .stride = 2});
      part(".up_proj", ".gate_up_proj", 2 * config.d_ff, config.d_model, {.offset = 1, .group = 1, .stride = 2});
      part(".down_proj", ".down_proj", config.d_model, config.d_ff, {});
    }
    add_linear(own + ".router", place + std::string(names.router), config.experts, config.d_model, true);
  }

  // Each expert has tensors of its own.
  void bind_single_experts(const FeedForwardConfig& config, const std::string& own, const StackNames& names,
                           const std::string& place) {
    for (std::int64_t expert = 0; expert < config.experts; ++expert) {
      const std::string parameter = own + ".experts." + std::to_string(expert);
      const std::string stored = place + std::string(names.experts) + "." + std::to_string(expert) + ".";
      add_linear(parameter + ".gate_proj", stored + std::string(names.gate), config.d_ff, config.d_model, config.bias);
      add_linear(parameter + ".up_proj", stored + std::string(names.up), config.d_ff, config.d_model, config.bias);
      add_linear(parameter + ".down_proj", stored + std::string(names.down), config.d_model, config.d_ff, config.bias);
    }
    add_linear(own + ".router", place + std::string(names.router), config.experts, config.d_model, config.bias);
  }

  const TransformerConfig& config_;
  const TensorNames& names_;
  const Checkpoint& checkpoint_;
  std::string prefix_;
  std::vector<Binding> bindings_;
};

}  // namespace

std::vector<Binding> bind(const TransformerConfig& config, const Checkpoint& checkpoint) {
  return Binder(config, *names_of(config), checkpoint).all();
}

}  // namespace rootdk
