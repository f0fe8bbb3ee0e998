#include "lab/inspect/head_label.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace rootdk::lab {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

constexpr LabelRule kRules[] = {
    {HeadLabel::previous_token, "previous token", "at least 0.4 of the weight lies on the token just before"},
    {HeadLabel::first_token, "first token",
     "at least 0.4 of the weight lies on the first token, where heads rest that have nothing to say"},
    {HeadLabel::same_token, "same token",
     "at least 0.4 of the weight lies on equal tokens, the query's own among them"},
    {HeadLabel::induction, "induction",
     "in rows whose token occurred before, at least 0.4 of the weight lies on tokens that followed it then (the token "
     "just before the query and equal tokens, which other labels are about, do not count)"},
    {HeadLabel::broad, "broad", "none of the above, and at least half of the visible keys are used: e^entropy / keys"},
    {HeadLabel::local, "local", "none of the above, and at least 0.6 of the weight lies at most 8 tokens away"},
    {HeadLabel::mixed, "mixed", "none of the above, or too few rows to tell it from uniform attention"},
};

// The least score that a label asks for.
double threshold_of(HeadLabel label) {
  switch (label) {
    case HeadLabel::broad: return kUsedShare;
    case HeadLabel::local: return kNearShare;
    default: return kClearShare;
  }
}

}  // namespace

std::span<const LabelRule> label_rules() { return kRules; }

std::string_view name_of(HeadLabel label) {
  for (const LabelRule& rule : kRules) {
    if (rule.label == label) return rule.name;
  }
  return "unknown";
}

double share_bound(std::int64_t count, double mean, double expected) {
  if (count == 0 || !(mean > expected)) return 1;
  // exp(-count KL(mean, expected)); 0 ln 0 is 0.
  const double share = std::clamp(mean, 0.0, 1.0);
  const auto term = [](double x, double y) { return x > 0 ? x * std::log(x / y) : 0.0; };
  return std::exp(-static_cast<double>(count) * (term(share, expected) + term(1 - share, 1 - expected)));
}

void HeadRows::add(HeadLabel label, std::int64_t row, double score, double chance) {
  const std::int32_t token = query_ids_[static_cast<std::size_t>(row)];
  TokenSum& sum = sums_[static_cast<std::size_t>(label)][token];
  sum.score += score;
  sum.chance += chance;
  ++sum.rows;
}

void HeadRows::add_weights(std::int64_t row, VisibleKeys visible, std::span<const float> weights) {
  // What the keys of each question received, and how many they are.
  struct Keys {
    double weight = 0;
    std::int64_t count = 0;
    void add(double w) { weight += w, ++count; }
  };
  std::array<Keys, kQuestions> keys;
  const auto of = [&](HeadLabel label) -> Keys& { return keys[static_cast<std::size_t>(label)]; };
  if (visible.contains(0)) of(HeadLabel::first_token).add(weights[0]);
  if (!crosses_) {
    const std::int32_t token = query_ids_[static_cast<std::size_t>(row)];
    const auto id = [&](std::int64_t j) { return key_ids_[static_cast<std::size_t>(j)]; };
    for (std::int64_t j = visible.first; j <= visible.last; ++j) {
      const double weight = weights[static_cast<std::size_t>(j)];
      const std::int64_t distance = std::abs(row - j);
      const bool previous = j == row - 1, same = id(j) == token;
      distance_ += weight * static_cast<double>(distance);
      if (previous) of(HeadLabel::previous_token).add(weight);
      if (same) of(HeadLabel::same_token).add(weight);
      if (distance <= kNearTokens) of(HeadLabel::local).add(weight);
      if (j > 0 && j < row && id(j - 1) == token && !previous && !same) of(HeadLabel::induction).add(weight);
    }
    ++distance_rows_;
  }
  for (std::size_t q = 0; q < kQuestions; ++q) {
    if (keys[q].count == 0) continue;
    add(static_cast<HeadLabel>(q), row, keys[q].weight,
        static_cast<double>(keys[q].count) / static_cast<double>(visible.count()));
  }
}

void HeadRows::add_entropy(std::int64_t row, VisibleKeys visible, double entropy) {
  add(HeadLabel::broad, row, std::exp(entropy) / static_cast<double>(visible.count()), 1);
}

double HeadRows::mean_distance() const {
  return distance_rows_ > 0 ? distance_ / static_cast<double>(distance_rows_) : kNone;
}

LabelScores HeadRows::scores(std::int64_t heads) const {
  LabelScores scores;
  for (std::size_t q = 0; q < kQuestions; ++q) {
    LabelScore& score = scores[q];
    score.label = static_cast<HeadLabel>(q);
    double token_score = 0, token_chance = 0;  // of the means of each token
    for (const auto& [token, sum] : sums_[q]) {
      const auto rows = static_cast<double>(sum.rows);
      score.score += sum.score;
      score.chance += sum.chance;
      score.rows += sum.rows;
      token_score += sum.score / rows;
      token_chance += sum.chance / rows;
    }
    const auto rows = static_cast<double>(score.rows);
    score.tokens = static_cast<std::int64_t>(sums_[q].size());
    score.score = score.rows > 0 ? score.score / rows : kNone;
    score.chance = score.rows > 0 ? score.chance / rows : kNone;
    if (score.tokens == 0) continue;
    const auto tokens = static_cast<double>(score.tokens);
    // Broad is no preference for some keys: here it is the rule's own half that must be passed beyond doubt.
    const double expected = score.label == HeadLabel::broad ? kUsedShare : token_chance / tokens;
    score.p_value = share_bound(score.tokens, token_score / tokens, expected);
    score.significant = score.p_value * static_cast<double>(heads) * static_cast<double>(kQuestions) <= kFalseLabels;
  }
  return scores;
}

LabelScore chosen_label(const LabelScores& scores) {
  const auto found = [&](HeadLabel label) -> const LabelScore* {
    const LabelScore& score = scores[static_cast<std::size_t>(label)];
    return score.significant && score.score >= threshold_of(label) ? &score : nullptr;
  };
  const LabelScore* best = nullptr;
  for (const HeadLabel label :
       {HeadLabel::induction, HeadLabel::previous_token, HeadLabel::first_token, HeadLabel::same_token}) {
    const LabelScore* score = found(label);
    if (score && (!best || score->excess() > best->excess())) best = score;
  }
  if (!best) best = found(HeadLabel::broad);
  if (!best) best = found(HeadLabel::local);
  return best ? *best : LabelScore{.score = 0, .chance = kNone};
}

}  // namespace rootdk::lab
