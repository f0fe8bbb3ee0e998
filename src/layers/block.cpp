#include "layers/block.h"

#include "layers/elementwise.h"

namespace rootdk {
namespace {

MultiHeadConfig cross_config(MultiHeadConfig config) {
  config.causal = false;
  config.window_left = -1;
  config.rotary = false;
  config.alibi = false;
  return config;
}

}  // namespace

Block::Block(const BlockConfig& config)
    : attention(config.attention), feed_forward(config.feed_forward), config_(config) {
  const std::int64_t width = config.attention.d_model;
  auto make_norm = [&] { return Norm(width, config.norm, config.norm_bias); };
  if (config.attention_norm) attention_norm = make_norm();
  feed_forward_norm = make_norm();
  if (config.placement == NormPlacement::sandwich) {
    attention_post_norm = make_norm();
    feed_forward_post_norm = make_norm();
  }
  if (config.cross_attention) {
    cross = MultiHeadAttention(cross_config(config.attention));
    cross_norm = make_norm();
  }
}

template <class Branch>
Value Block::residual(Context& context, const Value& x, const Norm& norm, const Norm& post_norm,
                      Branch&& branch) const {
  if (config_.placement == NormPlacement::post) return norm(context, add(context, x, dropout(context, branch(x))));
  if (config_.placement == NormPlacement::output) {
    return add(context, x, norm(context, dropout(context, branch(x))));
  }
  const Value normed = norm ? norm(context, x) : x;
  Value y = branch(normed);
  if (post_norm) y = post_norm(context, y);
  return add(context, config_.residual_after_norm ? normed : x, dropout(context, y));
}

Value Block::operator()(Context& context, const Value& x, const BlockInput& input) const {
  auto self_attention = [&](const Value& y) { return attention(context, y, input.self); };
  auto cross_attention = [&](const Value& y) { return cross(context, y, input.cross); };
  auto feed = [&](const Value& y) { return feed_forward(context, y); };
  if (config_.placement == NormPlacement::parallel) {
    const Value attended = dropout(context, self_attention(attention_norm(context, x)));
    const Value fed = dropout(context, feed(feed_forward_norm(context, x)));
    return add(context, x, add(context, attended, fed));
  }
  Value y = residual(context, x, attention_norm, attention_post_norm, self_attention);
  if (config_.cross_attention) y = residual(context, y, cross_norm, Norm(), cross_attention);
  return residual(context, y, feed_forward_norm, feed_forward_post_norm, feed);
}

void Block::collect(Parameters& into, const std::string& name) const {
  attention_norm.collect(into, name + ".attention_norm");
  attention.collect(into, name + ".attention");
  attention_post_norm.collect(into, name + ".attention_post_norm");
  if (config_.cross_attention) {
    cross_norm.collect(into, name + ".cross_norm");
    cross.collect(into, name + ".cross");
  }
  feed_forward_norm.collect(into, name + ".feed_forward_norm");
  feed_forward.collect(into, name + ".feed_forward");
  feed_forward_post_norm.collect(into, name + ".feed_forward_post_norm");
}

}  // namespace rootdk
