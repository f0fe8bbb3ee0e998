// What each head does on a text, and what uniform attention over the same mask would score.

#include <cmath>

#include "lab/inspect/inspection.h"
#include "session.h"

namespace rootdk::live {
namespace {

Json number(double value) {
  if (std::isfinite(value)) return value;
  return nullptr;
}

}  // namespace

Answer Session::labels(const Json& request) const {
  const Knobs knobs = Knobs::read(request.value("knobs", Json::object()));
  const LoadedModel changed{.name = model().name, .model = with_knobs(model().model, knobs)};
  Answer answer;
  Json heads = Json::array();
  for (const lab::HeadProfile& head : lab::inspect(changed, ids_of(request)).heads) {
    heads.push_back({{"layer", head.layer},
                     {"head", head.head},
                     {"label", lab::name_of(head.label.label)},
                     {"score", number(head.label.score)},
                     {"chance", number(head.label.chance)},
                     {"rows", head.label.rows},
                     {"entropy", head.entropy},
                     {"sink", head.sink_mass},
                     {"sink_chance", head.sink_chance},
                     {"saturation", head.saturation},
                     {"gradient_left", head.gradient_left}});
  }
  answer.json["heads"] = std::move(heads);
  Json rules = Json::array();
  for (const lab::LabelRule& rule : lab::label_rules()) rules.push_back({{"name", rule.name}, {"rule", rule.rule}});
  answer.json["rules"] = std::move(rules);
  return answer;
}

}  // namespace rootdk::live
