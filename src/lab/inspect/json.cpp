#include "lab/inspect/json.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "lab/inspect/head_label.h"

namespace rootdk::lab {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Of a longer text the lists would be long: the report and the maps show it.
constexpr std::size_t kListedTokens = 1024;

OrderedJson number_or_null(double value) {
  if (std::isfinite(value)) return value;
  return nullptr;
}

OrderedJson to_json(const HeadProfile& head, const std::vector<std::string>& key_tokens) {
  OrderedJson json = {{"stack", name_of(head.stack)},
                      {"layer", head.layer},
                      {"head", head.head},
                      {"label", name_of(head.label)},
                      {"strength", head.strength}};
  const std::pair<const char*, double> numbers[] = {{"entropy", head.entropy},
                                                    {"effective_keys", head.effective_keys},
                                                    {"max_logit", head.max_logit},
                                                    {"saturation", head.saturation},
                                                    {"gradient_left", head.gradient_left},
                                                    {"sink_mass", head.sink_mass},
                                                    {"mean_distance", head.mean_distance},
                                                    {"previous", head.previous},
                                                    {"first", head.first},
                                                    {"same", head.same},
                                                    {"induction", head.induction},
                                                    {"near", head.near},
                                                    {"used", head.used}};
  for (const auto& [name, value] : numbers) json[name] = number_or_null(value);
  json["rows"] = head.rows;
  json["sampled_rows"] = head.sampled_rows;
  if (key_tokens.size() <= kListedTokens) json["column_mass"] = head.column_mass;
  return json;
}

OrderedJson to_json(const Inspection& inspection) {
  OrderedJson json = {{"model", inspection.model},
                      {"architecture", inspection.architecture},
                      {"parameters", inspection.parameters},
                      {"token_count", inspection.ids.size()}};
  if (inspection.ids.size() <= kListedTokens) {
    json["ids"] = inspection.ids;
    json["tokens"] = inspection.tokens;
  }
  if (!inspection.encoder_ids.empty()) json["encoder_tokens"] = inspection.encoder_tokens;
  for (const LabelRule& rule : label_rules()) json["rules"][std::string(rule.name)] = rule.rule;
  json["heads"] = OrderedJson::array();
  for (std::size_t index : sorted_by_label(inspection)) {
    const HeadProfile& head = inspection.heads[index];
    json["heads"].push_back(to_json(head, inspection.key_tokens(head)));
  }
  return json;
}

}  // namespace

std::string inspection_json(std::span<const Inspection> sides) {
  require(sides.size() == 1 || sides.size() == 2, "inspection_json: ", sides.size(), " sides, expected 1 or 2");
  OrderedJson json = to_json(sides[0]);
  if (sides.size() == 2) json = {{"a", json}, {"b", to_json(sides[1])}};
  return json.dump(1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace rootdk::lab
