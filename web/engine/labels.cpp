// What each head does on a text, and what it would score by chance.

#include "lab/inspect/head_label.h"
#include "lab/inspect/inspection.h"
#include "session.h"

namespace rootdk::live {

Answer Session::labels(const Json& request) const {
  const Knobs knobs = Knobs::read(request.value("knobs", Json::object()));
  const std::vector<std::int32_t> ids = ids_of(request);
  Knobs uniform = knobs;  // every visible key the same weight: what each share is by chance
  uniform.scale = Scale(0.0);
  const LoadedModel changed{.name = model().name, .model = with_knobs(model().model, knobs)};
  const LoadedModel chance{.name = model().name, .model = with_knobs(model().model, uniform)};
  const lab::Inspection found = lab::inspect(changed, ids), by_chance = lab::inspect(chance, ids);
  Answer answer;
  Json heads = Json::array();
  for (std::size_t i = 0; i < found.heads.size(); ++i) {
    const lab::HeadProfile& head = found.heads[i];
    const lab::HeadProfile& uniform_head = by_chance.heads[i];
    double expected = 0;
    switch (head.label) {
      case lab::HeadLabel::previous_token: expected = uniform_head.previous; break;
      case lab::HeadLabel::first_token: expected = uniform_head.first; break;
      case lab::HeadLabel::same_token: expected = uniform_head.same; break;
      case lab::HeadLabel::induction: expected = uniform_head.induction; break;
      case lab::HeadLabel::broad: expected = uniform_head.used; break;
      case lab::HeadLabel::local: expected = uniform_head.near; break;
      default: break;
    }
    heads.push_back({{"layer", head.layer},
                     {"head", head.head},
                     {"label", lab::name_of(head.label)},
                     {"score", head.strength},
                     {"chance", expected},
                     {"rows", head.sampled_rows},
                     {"entropy", head.entropy},
                     {"sink", head.sink_mass},
                     {"sink_chance", uniform_head.sink_mass},
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
