#include "layers/transformer_xl.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "layers/elementwise.h"

namespace rootdk {
namespace {

// Each sequence of x behind its memory: [batch (memory_len + len), width].
Value behind_memory(Context& context, const Tensor& memory, const Value& x, std::int64_t batch) {
  const std::int64_t width = x->width(), len = x->rows() / batch, memory_len = memory.size(0) / batch;
  Value joined = make_value({batch * (memory_len + len), width});
  for (std::int64_t b = 0; b < batch; ++b) {
    float* start = joined->data() + b * (memory_len + len) * width;
    std::copy_n(memory.view().as<float>() + b * memory_len * width, memory_len * width, start);
    std::copy_n(x->data() + b * len * width, len * width, start + memory_len * width);
  }
  if (context.tape) {
    context.tape->record([x, joined, batch, width, len, memory_len] {
      for (std::int64_t b = 0; b < batch; ++b) {
        const float* grad = joined->grad_data() + (b * (memory_len + len) + memory_len) * width;
        float* sum = x->grad_data() + b * len * width;
        for (std::int64_t i = 0; i < len * width; ++i) sum[i] += grad[i];
      }
    });
  }
  return joined;
}

}  // namespace

TransformerXlBlock::TransformerXlBlock(const TransformerXlConfig& config)
    : feed_forward({.d_model = config.d_model, .d_ff = config.d_ff, .activation = Activation::relu, .bias = true}),
      attention_norm(config.d_model, config.norm, true),
      feed_forward_norm(config.d_model, config.norm, true),
      config_(config) {
  require(config.heads > 0 && config.d_model % config.heads == 0, "transformer-xl: d_model ", config.d_model,
          " is not a multiple of heads ", config.heads);
  for (Linear* projection : {&q, &k, &v, &r, &out}) *projection = Linear(config.d_model, config.d_model, false);
  u_bias = make_value({config.d_model});
  v_bias = make_value({config.d_model});
}

Value TransformerXlBlock::operator()(Context& context, const Value& x, const Tensor& memory, std::int64_t batch,
                                     AttentionCapture* capture) const {
  require(batch > 0 && x->rows() % batch == 0, "transformer-xl: ", x->rows(), " rows in a batch of ", batch);
  const Value source = memory.defined() ? behind_memory(context, memory, x, batch) : x;
  const std::int64_t kv_len = source->rows() / batch;
  const std::int64_t head_dim = config_.d_model / config_.heads;
  const double scale = 1.0 / std::sqrt(static_cast<double>(head_dim));

  Value distances = make_value({kv_len, config_.d_model});
  sinusoidal_positions(distances->value(), {.layout = SinusoidalLayout::concatenated});
  const Value queries = q(context, x);
  const Value term = transformer_xl_term(context, queries, v_bias, r(context, distances),
                                         {.batch = batch, .heads = config_.heads, .kv_len = kv_len}, scale);
  const Value attended = dot_product_attention(context,
                                               {.batch = batch,
                                                .heads = config_.heads,
                                                .kv_heads = config_.heads,
                                                .q = add_row(context, queries, u_bias),
                                                .k = k(context, source),
                                                .v = v(context, source),
                                                .bias = term},
                                               {.logits = {.scale = scale}, .causal = true}, capture);
  const Value y = attention_norm(context, add(context, x, dropout(context, out(context, attended))));
  return feed_forward_norm(context, add(context, y, dropout(context, feed_forward(context, y))));
}

void TransformerXlBlock::collect(Parameters& into, const std::string& name) const {
  q.collect(into, name + ".q_proj");
  k.collect(into, name + ".k_proj");
  v.collect(into, name + ".v_proj");
  r.collect(into, name + ".r_proj");
  out.collect(into, name + ".o_proj");
  into.push_back({name + ".u_bias", u_bias});
  into.push_back({name + ".v_bias", v_bias});
  feed_forward.collect(into, name + ".feed_forward");
  attention_norm.collect(into, name + ".attention_norm");
  feed_forward_norm.collect(into, name + ".feed_forward_norm");
}

}  // namespace rootdk
