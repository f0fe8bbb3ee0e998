#include "layers/feed_forward.h"

#include "core/check.h"
#include "layers/mixture.h"

namespace rootdk {

FeedForward::FeedForward(const FeedForwardConfig& config) : config_(config) {
  require(config.d_model > 0 && config.d_ff > 0, "feed-forward: d_model ", config.d_model, " and d_ff ", config.d_ff,
          " must be positive");
  const bool mixture = config.experts > 0;
  require(!mixture || (config.top_k > 0 && config.top_k <= config.experts), "feed-forward: top_k ", config.top_k,
          " of ", config.experts, " experts");
  for (std::int64_t i = 0; i < (mixture ? config.experts : 1); ++i) {
    Expert expert;
    if (config.gated || mixture) expert.gate = Linear(config.d_ff, config.d_model, config.bias, config.memory);
    expert.up = Linear(config.d_ff, config.d_model, config.bias, config.memory);
    expert.down = Linear(config.d_model, config.d_ff, config.bias, config.memory);
    experts.push_back(std::move(expert));
  }
  if (mixture) router = Linear(config.experts, config.d_model, config.bias, config.memory);
}

Value FeedForward::operator()(Context& context, const Value& x) const {
  if (config_.experts > 0) return mixture(context, x);
  const Expert& only = experts.front();
  if (!config_.gated) return only.down(context, activate(context, only.up(context, x), config_.activation));
  const std::vector<Value> inner = linear_together(context, x, {&only.gate, &only.up});
  return only.down(context, gated(context, inner[0], inner[1], config_.activation));
}

Value FeedForward::mixture(Context& context, const Value& x) const {
  const Routing routing = route(context, router(context, x), config_.top_k);
  std::vector<ExpertAnswer> answers;
  for (std::size_t number = 0; number < experts.size(); ++number) {
    auto slots = std::make_shared<std::vector<std::int32_t>>();
    auto rows = std::make_shared<std::vector<std::int32_t>>();
    for (std::size_t slot = 0; slot < routing.expert.size(); ++slot) {
      if (routing.expert[slot] != static_cast<std::int32_t>(number)) continue;
      slots->push_back(static_cast<std::int32_t>(slot));
      rows->push_back(static_cast<std::int32_t>(slot / static_cast<std::size_t>(config_.top_k)));
    }
    if (slots->empty()) continue;
    const Expert& expert = experts[number];
    const Value mine = gather_rows(context, x, rows);
    const std::vector<Value> projected = linear_together(context, mine, {&expert.gate, &expert.up});
    const Value &gate = projected[0], &up = projected[1];
    const Value inner = config_.clamp_limit > 0
                            ? clamped_swiglu(context, gate, up, static_cast<float>(config_.clamp_limit))
                            : gated(context, gate, up, config_.activation);
    answers.push_back({expert.down(context, inner), slots});
  }
  return combine(context, answers, routing, config_.d_model);
}

void FeedForward::collect(Parameters& into, const std::string& name) const {
  for (std::size_t i = 0; i < experts.size(); ++i) {
    const std::string place = config_.experts > 0 ? name + ".experts." + std::to_string(i) : name;
    if (experts[i].gate.weight) experts[i].gate.collect(into, place + ".gate_proj");
    experts[i].up.collect(into, place + ".up_proj");
    experts[i].down.collect(into, place + ".down_proj");
  }
  if (config_.experts > 0) router.collect(into, name + ".router");
}

}  // namespace rootdk
