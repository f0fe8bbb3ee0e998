#include "layers/multi_head_attention.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "layers/stored_matrix.h"

namespace rootdk {
namespace {

MultiHeadConfig checked(MultiHeadConfig config) {
  require(config.d_model > 0 && config.heads > 0, "multi-head attention: d_model ", config.d_model, " and heads ",
          config.heads, " must be positive");
  if (config.kv_heads == 0) config.kv_heads = config.heads;
  require(config.kv_heads > 0 && config.heads % config.kv_heads == 0, "multi-head attention: heads ", config.heads,
          " is not a multiple of kv_heads ", config.kv_heads);
  if (config.head_dim == 0) {
    require(config.d_model % config.heads == 0, "multi-head attention: d_model ", config.d_model, " is not heads ",
            config.heads, " x head_dim; name head_dim where they differ");
    config.head_dim = config.d_model / config.heads;
  }
  if (config.value_dim == 0) config.value_dim = config.head_dim;
  require(config.head_dim > 0 && config.value_dim > 0, "multi-head attention: head_dim ", config.head_dim,
          " and value_dim ", config.value_dim, " must be positive");
  return config;
}

void scale_head(const Linear& projection, std::int64_t head, std::int64_t head_dim, float factor) {
  const std::int64_t in = projection.weight->width();
  float* weight = projection.weight->data() + head * head_dim * in;
  for (std::int64_t i = 0; i < head_dim * in; ++i) weight[i] *= factor;
  if (!projection.bias) return;
  for (std::int64_t i = 0; i < head_dim; ++i) projection.bias->data()[head * head_dim + i] *= factor;
}

}  // namespace

MultiHeadAttention::MultiHeadAttention(const MultiHeadConfig& config) : config_(checked(config)) {
  q = Linear(config_.heads * config_.head_dim, config_.d_model, config_.qkv_bias, config_.memory);
  k = Linear(config_.kv_heads * config_.head_dim, config_.d_model, config_.qkv_bias, config_.memory);
  v = Linear(config_.kv_heads * config_.value_dim, config_.d_model, config_.qkv_bias, config_.memory);
  if (config_.output_projection)
    out = Linear(config_.d_model, config_.heads * config_.value_dim, config_.out_bias, config_.memory);
  if (config_.qk_norm) {
    const bool all = config_.qk_norm_over_heads;
    q_norm = Norm(config_.head_dim * (all ? config_.heads : 1), *config_.qk_norm, false);
    k_norm = Norm(config_.head_dim * (all ? config_.kv_heads : 1), *config_.qk_norm, false);
  }
  if (config_.sinks) sinks = make_value({config_.heads});
  if (config_.score == Score::additive) additive_v = make_value({config_.heads, config_.head_dim});
  if (config_.alibi) {
    auto slopes = std::make_shared<Tensor>(DType::f32, std::initializer_list<std::int64_t>{config_.heads});
    alibi_slopes(*slopes);
    alibi_ = slopes;
  }
}

Value MultiHeadAttention::finish_keys(Context& context, Value keys,
                                      const std::shared_ptr<const RopeTable>& rope) const {
  if (k_norm) keys = k_norm(context, keys);
  if (config_.rotary) keys = rotate(context, keys, rope);
  return keys;
}

FixedKeys MultiHeadAttention::fixed_keys(Context& context, const Value& source) const {
  require(!config_.rotary, "multi-head attention: fixed keys have no positions to rotate by");
  std::vector<Value> projected = linear_together(context, source, {&k, &v});
  return {.k = finish_keys(context, std::move(projected[0]), nullptr), .v = std::move(projected[1])};
}

Value MultiHeadAttention::operator()(Context& context, const Value& x, const AttentionInput& input) const {
  require(!config_.rotary || input.rope, "multi-head attention: rotary heads need positions");
  const bool own_keys = input.fixed.empty() && !input.source;
  std::vector<Value> projected = own_keys ? linear_together(context, x, {&q, &k, &v}) : std::vector{q(context, x)};
  Value queries = std::move(projected[0]);
  if (q_norm) queries = q_norm(context, queries);
  if (config_.rotary) queries = rotate(context, queries, input.rope);

  DotProductInput call{.batch = input.batch, .heads = config_.heads, .kv_heads = config_.kv_heads, .q = queries};
  if (own_keys) {
    call.k = finish_keys(context, std::move(projected[1]), input.rope);
    call.v = std::move(projected[2]);
  } else if (input.fixed.empty()) {
    projected = linear_together(context, input.source, {&k, &v});
    call.k = finish_keys(context, std::move(projected[0]), input.rope);
    call.v = std::move(projected[1]);
  }
  call.relative_table = input.relative_table;
  call.sinks = sinks;
  call.additive_v = additive_v;
  call.padding = input.padding;
  call.alibi = alibi_;
  AttentionParams params{
      .score = config_.score,
      .logits = {.scale = config_.scale, .softcap = config_.softcap, .relative_zero = input.relative_zero},
      .causal = config_.causal,
      .window_left = config_.window_left,
      .window_right = config_.window_right};
  Value attended;
  if (input.cached.cache) {
    CachedRows rows = input.cached;
    rows.rounds_queries = config_.output_projection && matrix_of(*out.weight).rounds_x;  // as the products do
    attended = cached_attention(context, call, params, rows);
  } else if (!input.fixed.empty()) {
    attended = fixed_attention(context, call, params, input.fixed, input.steps);
  } else {
    if (context.fp8_attention) params.compute = DType::f8e4m3;
    attended = dot_product_attention(context, call, params, input.capture);
  }
  return config_.output_projection ? out(context, attended) : attended;
}

void MultiHeadAttention::collect(Parameters& into, const std::string& name) const {
  q.collect(into, name + ".q_proj");
  k.collect(into, name + ".k_proj");
  v.collect(into, name + ".v_proj");
  if (config_.output_projection) out.collect(into, name + ".o_proj");
  q_norm.collect(into, name + ".q_norm");
  k_norm.collect(into, name + ".k_norm");
  if (sinks) into.push_back({name + ".sinks", sinks});
  if (additive_v) into.push_back({name + ".additive_v", additive_v});
}

int qk_clip(MultiHeadAttention& layer, std::span<const float> max_logit, double limit) {
  const MultiHeadConfig& config = layer.config();
  require(static_cast<std::int64_t>(max_logit.size()) == config.heads, "qk_clip: ", max_logit.size(),
          " largest logits for ", config.heads, " heads");
  require(!layer.q_norm, "qk_clip: has no effect under QK-norm, which fixes the length of queries and keys");
  const bool shared_keys = config.kv_heads != config.heads;
  int clipped = 0;
  for (std::int64_t head = 0; head < config.heads; ++head) {
    const double largest = max_logit[static_cast<std::size_t>(head)];
    if (!(largest > limit)) continue;
    const double factor = limit / largest;
    scale_head(layer.q, head, config.head_dim, static_cast<float>(shared_keys ? factor : std::sqrt(factor)));
    if (!shared_keys) scale_head(layer.k, head, config.head_dim, static_cast<float>(std::sqrt(factor)));
    ++clipped;
  }
  return clipped;
}

}  // namespace rootdk
