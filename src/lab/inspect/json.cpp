#include "lab/inspect/json.h"

#include "core/check.h"
#include "lab/inspect/json_writer.h"

namespace rootdk::lab {
namespace {

// Of a longer text the lists would be long: the report and the maps show it.
constexpr std::size_t kListedTokens = 1024;

void write(JsonWriter& json, const LabelScores& scores) {
  json.name("scores");
  json.open('[');
  for (const LabelScore& score : scores) {
    json.next();
    json.open('{');
    json.member("label", name_of(score.label));
    json.member("score", number_or_null(score.score));
    json.member("chance", number_or_null(score.chance));
    json.member("rows", score.rows);
    json.member("tokens", score.tokens);
    json.member("p_value", score.p_value);
    json.member("significant", score.significant);
    json.close('}');
  }
  json.close(']');
}

void write(JsonWriter& json, const HeadProfile& head, const std::vector<std::string>& key_tokens) {
  json.open('{');
  json.member("stack", name_of(head.stack));
  json.member("layer", head.layer);
  json.member("head", head.head);
  json.member("label", name_of(head.label.label));
  json.member("strength", head.label.score);
  const std::pair<const char*, double> numbers[] = {{"chance", head.label.chance},
                                                    {"entropy", head.entropy},
                                                    {"effective_keys", head.effective_keys},
                                                    {"max_logit", head.max_logit},
                                                    {"saturation", head.saturation},
                                                    {"gradient_left", head.gradient_left},
                                                    {"sink_mass", head.sink_mass},
                                                    {"sink_chance", head.sink_chance},
                                                    {"mean_distance", head.mean_distance},
                                                    {"previous", head.score(HeadLabel::previous_token)},
                                                    {"first", head.score(HeadLabel::first_token)},
                                                    {"same", head.score(HeadLabel::same_token)},
                                                    {"induction", head.score(HeadLabel::induction)},
                                                    {"near", head.score(HeadLabel::local)},
                                                    {"used", head.score(HeadLabel::broad)}};
  for (const auto& [name, value] : numbers) json.member(name, number_or_null(value));
  json.member("label_rows", head.label.rows);
  json.member("p_value", head.label.p_value);
  json.member("rows", head.rows);
  json.member("sampled_rows", head.sampled_rows);
  write(json, head.scores);
  if (key_tokens.size() <= kListedTokens) {
    json.list("column_mass", head.column_mass);
    json.list("column_chance", head.column_chance);
  }
  json.close('}');
}

void write(JsonWriter& json, const Inspection& inspection) {
  json.open('{');
  json.member("model", inspection.model);
  json.member("architecture", inspection.architecture);
  json.member("parameters", inspection.parameters);
  json.member("token_count", inspection.ids.size());
  json.member("trained_context", inspection.trained_context);
  json.list("warnings", inspection.warnings);
  if (inspection.ids.size() <= kListedTokens) {
    json.list("ids", inspection.ids);
    json.list("tokens", inspection.tokens);
  }
  if (!inspection.encoder_ids.empty()) json.list("encoder_tokens", inspection.encoder_tokens);
  json.name("rules");
  json.open('{');
  for (const LabelRule& rule : label_rules()) json.member(rule.name, rule.rule);
  json.close('}');
  json.name("heads");
  json.open('[');
  for (std::size_t index : sorted_by_label(inspection)) {
    const HeadProfile& head = inspection.heads[index];
    json.next();
    write(json, head, inspection.key_tokens(head));
  }
  json.close(']');
  json.close('}');
}

}  // namespace

std::string inspection_json(std::span<const Inspection> sides) {
  require(sides.size() == 1 || sides.size() == 2, "inspection_json: ", sides.size(), " sides, expected 1 or 2");
  JsonWriter json;
  if (sides.size() == 1) {
    write(json, sides[0]);
  } else {
    json.open('{');
    json.name("a");
    write(json, sides[0]);
    json.name("b");
    write(json, sides[1]);
    json.close('}');
  }
  return json.take();
}

}  // namespace rootdk::lab
