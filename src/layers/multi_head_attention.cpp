#include "layers/multi_head_attention.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"

namespace rootdk {
namespace {

MultiHeadConfig checked(MultiHeadConfig config) {
  require(config.d_model > 0 && config.heads > 0, "multi-head attention: d_model ", config.d_model, " and heads ",
          config.heads, " must be positive");
  if (config.kv_heads == 0) config.kv_heads = config.heads;
  require(config.heads % config.kv_heads == 0, "multi-head attention: heads ", config.heads,
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

void copy_heads(const Tensor& from, std::int64_t batch, std::int64_t heads, TensorView to) {
  const ConstTensorView source = heads_of(from, batch, heads);
  const std::int64_t dim = source.size(3);
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t i = 0; i < source.size(2); ++i) {
        const float* row = source.as<float>() + b * source.stride(0) + h * source.stride(1) + i * source.stride(2);
        std::copy_n(row, dim, to.as<float>() + b * to.stride(0) + h * to.stride(1) + i * to.stride(2));
      }
    }
  }
}

void scale_head(const Linear& projection, std::int64_t head, std::int64_t head_dim, float factor) {
  const std::int64_t in = projection.weight->width();
  float* weight = projection.weight->data() + head * head_dim * in;
  for (std::int64_t i = 0; i < head_dim * in; ++i) weight[i] *= factor;
  if (!projection.bias) return;
  for (std::int64_t i = 0; i < head_dim; ++i) projection.bias->data()[head * head_dim + i] *= factor;
}

}  // namespace

LayerCache::LayerCache(std::int64_t batch, std::int64_t capacity, const MultiHeadConfig& config)
    : k_(DType::f32, {batch, config.kv_heads, capacity, config.head_dim}),
      v_(DType::f32, {batch, config.kv_heads, capacity, config.value_dim}) {}

void LayerCache::append(const Tensor& k, const Tensor& v) {
  const std::int64_t batch = k_.size(0), added = k.size(0) / batch;
  if (length_ + added > capacity()) reserve(std::max(length_ + added, 2 * capacity()));
  copy_heads(k, batch, k_.size(1), k_.view().slice(2, length_, length_ + added));
  copy_heads(v, batch, v_.size(1), v_.view().slice(2, length_, length_ + added));
  length_ += added;
}

// Both are made before either is replaced: where memory runs out, the cache stays as it was.
void LayerCache::reserve(std::int64_t capacity) {
  auto grown = [&](const Tensor& kept) {
    Tensor larger(DType::f32, {kept.size(0), kept.size(1), capacity, kept.size(3)});
    const std::int64_t heads = kept.size(0) * kept.size(1), row = kept.size(3);
    for (std::int64_t head = 0; head < heads; ++head) {
      std::copy_n(kept.view().as<float>() + head * kept.size(2) * row, length_ * row,
                  larger.view().as<float>() + head * capacity * row);
    }
    return larger;
  };
  Tensor k = grown(k_), v = grown(v_);
  k_ = std::move(k);
  v_ = std::move(v);
}

ConstTensorView LayerCache::keys() const { return k_.view().slice(2, 0, length_); }
ConstTensorView LayerCache::values() const { return v_.view().slice(2, 0, length_); }

MultiHeadAttention::MultiHeadAttention(const MultiHeadConfig& config) : config_(checked(config)) {
  q = Linear(config_.heads * config_.head_dim, config_.d_model, config_.qkv_bias);
  k = Linear(config_.kv_heads * config_.head_dim, config_.d_model, config_.qkv_bias);
  v = Linear(config_.kv_heads * config_.value_dim, config_.d_model, config_.qkv_bias);
  if (config_.output_projection) out = Linear(config_.d_model, config_.heads * config_.value_dim, config_.out_bias);
  if (config_.qk_norm) {
    q_norm = Norm(config_.head_dim, *config_.qk_norm, false);
    k_norm = Norm(config_.head_dim, *config_.qk_norm, false);
  }
  if (config_.sinks) sinks = make_value({config_.heads});
  if (config_.score == Score::additive) additive_v = make_value({config_.heads, config_.head_dim});
  if (config_.alibi) {
    auto slopes = std::make_shared<Tensor>(DType::f32, std::initializer_list<std::int64_t>{config_.heads});
    alibi_slopes(*slopes);
    alibi_ = slopes;
  }
}

Value MultiHeadAttention::project_keys(Context& context, const Value& source, const AttentionInput& input) const {
  Value keys = k(context, source);
  if (k_norm) keys = k_norm(context, keys);
  if (config_.rotary) keys = rotate(context, keys, input.rope);
  return keys;
}

Value MultiHeadAttention::operator()(Context& context, const Value& x, const AttentionInput& input) const {
  require(!config_.rotary || input.rope, "multi-head attention: rotary heads need positions");
  Value queries = q(context, x);
  if (q_norm) queries = q_norm(context, queries);
  if (config_.rotary) queries = rotate(context, queries, input.rope);

  DotProductInput call{.batch = input.batch, .heads = config_.heads, .kv_heads = config_.kv_heads, .q = queries};
  const bool already_cached = input.source && input.cache && input.cache->length() > 0;
  if (!already_cached) {
    const Value& source = input.source ? input.source : x;
    call.k = project_keys(context, source, input);
    call.v = v(context, source);
    if (input.cache) input.cache->append(call.k->value(), call.v->value());
  }
  if (input.cache) {
    call.cached_k = input.cache->keys();
    call.cached_v = input.cache->values();
  }
  call.relative_table = input.relative_table;
  call.sinks = sinks;
  call.additive_v = additive_v;
  call.padding = input.padding;
  call.alibi = alibi_;
  const AttentionParams params{
      .score = config_.score,
      .logits = {.scale = config_.scale, .softcap = config_.softcap, .relative_zero = input.relative_zero},
      .causal = config_.causal,
      .window_left = config_.window_left};
  const Value read = dot_product_attention(context, call, params, input.capture);
  return config_.output_projection ? out(context, read) : read;
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
