#include "lab/inspect/head_label.h"

namespace rootdk::lab {
namespace {

constexpr LabelRule kRules[] = {
    {HeadLabel::previous_token, "previous token", "at least 0.4 of the weight lies on the token just before"},
    {HeadLabel::first_token, "first token",
     "at least 0.4 of the weight lies on the first token, where heads rest that have nothing to say"},
    {HeadLabel::same_token, "same token",
     "at least 0.4 of the weight lies on equal tokens, the query's own among them"},
    {HeadLabel::induction, "induction",
     "in rows whose token occurred before, at least 0.4 of the weight lies on tokens that followed it then"},
    {HeadLabel::broad, "broad", "none of the above, and at least half of the visible keys are used: e^entropy / keys"},
    {HeadLabel::local, "local", "none of the above, and at least 0.6 of the weight lies at most 8 tokens away"},
    {HeadLabel::mixed, "mixed", "none of the above"},
};

}  // namespace

std::span<const LabelRule> label_rules() { return kRules; }

std::string_view name_of(HeadLabel label) {
  for (const LabelRule& rule : kRules) {
    if (rule.label == label) return rule.name;
  }
  return "unknown";
}

void label_head(HeadProfile& head) {
  const std::pair<HeadLabel, double> clear[] = {{HeadLabel::induction, head.induction},
                                                {HeadLabel::previous_token, head.previous},
                                                {HeadLabel::first_token, head.first},
                                                {HeadLabel::same_token, head.same}};
  head.label = HeadLabel::mixed;
  head.strength = 0;
  if (head.keys < 2) return;                  // where there is one key, all heads read it
  for (const auto& [label, share] : clear) {  // NaN compares false: a question that does not arise gives no label
    if (share >= kClearShare && share > head.strength) {
      head.label = label;
      head.strength = share;
    }
  }
  if (head.label != HeadLabel::mixed) return;
  if (head.used >= kUsedShare) {
    head.label = HeadLabel::broad;
    head.strength = head.used;
  } else if (head.near >= kNearShare && head.keys > 2 * kNearTokens) {
    head.label = HeadLabel::local;
    head.strength = head.near;
  }
}

}  // namespace rootdk::lab
