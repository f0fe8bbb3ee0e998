// Labels of synthetic heads: every kind is found, and heads that attend at random get no label.

#include "lab/inspect/head_label.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "lab/sampling.h"

namespace rootdk::lab {
namespace {

constexpr std::int64_t kHeads = 40;  // of the model that a head is thought to belong to

// A text of random tokens; the second half repeats the first where asked, so that induction has something to find.
std::vector<std::int32_t> some_text(Random& random, std::int64_t length, std::int64_t vocabulary,
                                    bool repeats = false) {
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < length; ++i) {
    ids.push_back(repeats && i >= length / 2 ? ids[static_cast<std::size_t>(i - length / 2)]
                                             : static_cast<std::int32_t>(random.below(vocabulary)));
  }
  return ids;
}

using Logit = std::function<double(std::int64_t i, std::int64_t j)>;

// The scores of a head with these logits.
LabelScores scores_of(const std::vector<std::int32_t>& ids, const Logit& logit, bool causal = true) {
  const auto n = static_cast<std::int64_t>(ids.size());
  HeadRows rows(ids, ids, false);
  for (std::int64_t i = 0; i < n; ++i) {
    const VisibleKeys visible{0, causal ? i : n - 1};
    if (visible.count() < std::min(kEnoughKeys, (n + 1) / 2)) continue;
    std::vector<double> p(ids.size());
    double sum = 0, entropy = 0;
    for (std::int64_t j = 0; j <= visible.last; ++j) sum += p[static_cast<std::size_t>(j)] = std::exp(logit(i, j));
    for (double& w : p) {
      w /= sum;
      if (w > 0) entropy -= w * std::log(w);
    }
    rows.add_weights(i, visible, std::vector<float>(p.begin(), p.end()));
    rows.add_entropy(i, visible, entropy);
  }
  return rows.scores(kHeads);
}

TEST(HeadLabels, EveryKindIsFound) {
  Random random(1, 1);
  const auto ids = some_text(random, 128, 60, true);
  const auto id = [&](std::int64_t i) { return ids[static_cast<std::size_t>(i)]; };
  const auto noise = [&] { return 0.5 * random.normal(); };
  const auto follows = [&](std::int64_t i, std::int64_t j) { return j > 0 && j < i && id(j - 1) == id(i); };
  struct Kind {
    HeadLabel label;
    Logit logit;
  };
  const Kind kinds[] = {
      {HeadLabel::previous_token, [&](auto i, auto j) { return (j == i - 1 ? 6.0 : 0.0) + noise(); }},
      {HeadLabel::first_token, [&](auto, auto j) { return (j == 0 ? 6.0 : 0.0) + noise(); }},
      {HeadLabel::same_token, [&](auto i, auto j) { return (id(i) == id(j) ? 6.0 : 0.0) + noise(); }},
      {HeadLabel::induction, [&](auto i, auto j) { return (follows(i, j) ? 7.0 : 0.0) + noise(); }},
      {HeadLabel::broad, [&](auto, auto) { return noise(); }},
      {HeadLabel::local, [&](auto i, auto j) { return (i - j <= 7 ? 4.0 : 0.0) + noise(); }},
      {HeadLabel::mixed, [&](auto, auto) { return 4 * random.normal(); }},
  };
  for (const Kind& kind : kinds) {
    const LabelScore label = chosen_label(scores_of(ids, kind.logit));
    EXPECT_EQ(name_of(label.label), name_of(kind.label)) << "score " << label.score << ", chance " << label.chance;
    if (kind.label == HeadLabel::mixed) continue;
    EXPECT_TRUE(label.significant);
    EXPECT_GT(label.rows, 50);
    EXPECT_LE(label.tokens, 60);
    if (kind.label != HeadLabel::broad) {
      EXPECT_LT(label.chance, 0.5 * label.score);
    }
  }
}

// What uniform attention itself scores is the chance level, and gives no label but broad.
TEST(HeadLabels, UniformAttentionScoresItsChanceLevel) {
  Random random(2, 1);
  for (const bool causal : {true, false}) {
    const LabelScores scores = scores_of(
        some_text(random, 90, 30), [](auto, auto) { return 0.0; }, causal);
    for (const LabelScore& score : scores) {
      ASSERT_GT(score.rows, 0) << name_of(score.label);
      EXPECT_NEAR(score.score, score.chance, 1e-6) << name_of(score.label);
    }
    EXPECT_EQ(chosen_label(scores).label, HeadLabel::broad);
  }
}

TEST(HeadLabels, ATokenTwoBackMakesThePreviousTokenNoInduction) {
  // ABAB...: the token that followed the last occurrence is the previous token, in every row. Others do count.
  const std::vector<std::int32_t> ids(64, 0);
  std::vector<std::int32_t> alternating, threes;
  for (std::int32_t i = 0; i < 64; ++i) alternating.push_back(i % 2), threes.push_back(i % 3);
  const Logit previous = [](auto i, auto j) { return j == i - 1 ? 20.0 : 0.0; };
  const auto induction = [&](const auto& text) {
    return scores_of(text, previous)[static_cast<std::size_t>(HeadLabel::induction)];
  };
  EXPECT_NEAR(induction(alternating).score, 0, 1e-6);
  EXPECT_NEAR(induction(threes).score, 0, 1e-6);
  EXPECT_EQ(induction(ids).rows, 0) << "equal tokens are for the label same token";
  EXPECT_EQ(chosen_label(scores_of(threes, previous)).label, HeadLabel::mixed) << "three tokens are three observations";
}

TEST(HeadLabels, FewRowsGiveNoLabel) {
  Random random(3, 1);
  std::vector<std::int32_t> ids = some_text(random, 40, 1000000);
  // Three tokens that occurred before, and a head that does what induction would do in exactly their rows.
  for (std::size_t at : {20, 27, 35}) ids[at] = ids[at - 12];
  const Logit logit = [&](auto i, auto j) {
    return j > 0 && j < i && ids[static_cast<std::size_t>(j - 1)] == ids[static_cast<std::size_t>(i)] ? 3.0 : 0.0;
  };
  const LabelScores scores = scores_of(ids, logit);
  const LabelScore& induction = scores[static_cast<std::size_t>(HeadLabel::induction)];
  EXPECT_EQ(induction.rows, 3);
  EXPECT_GT(induction.score, 0.4);
  EXPECT_FALSE(induction.significant);
  EXPECT_NE(chosen_label(scores).label, HeadLabel::induction);
}

// Heads without any preference, of several kinds: their rules alone would often be met, the labels are not given.
TEST(HeadLabels, RandomHeadsGetNoLabel) {
  int heads = 0, labels = 0, rules_met = 0;
  Random random(4, 1);
  for (const std::int64_t length : {12, 16, 22, 28, 48, 96}) {
    for (int draw = 0; draw < 40; ++draw) {
      const std::int64_t vocabulary = draw % 2 ? 12 : 200;
      const auto ids = some_text(random, length, vocabulary, draw % 4 == 3);
      const Tensor q = random.normal_tensor({length, 16}), k = random.normal_tensor({length, 16});
      const Tensor by_token = random.normal_tensor({vocabulary, vocabulary});
      const auto dot = [&](std::int64_t i, std::int64_t j) {
        double sum = 0;
        for (std::int64_t d = 0; d < 16; ++d)
          sum += double{q.values<float>()[static_cast<std::size_t>(i * 16 + d)]} *
                 k.values<float>()[static_cast<std::size_t>(j * 16 + d)];
        return sum;
      };
      const auto token = [&](std::int64_t i, std::int64_t j) {
        return double{by_token.values<float>()[static_cast<std::size_t>(ids[static_cast<std::size_t>(i)] * vocabulary +
                                                                        ids[static_cast<std::size_t>(j)])]};
      };
      const Logit kinds[] = {
          [&](auto, auto) { return 2 * random.normal(); }, [&](auto, auto) { return 8 * random.normal(); },
          [&](auto i, auto j) { return dot(i, j) / 4; },   [&](auto i, auto j) { return dot(i, j); },
          [&](auto i, auto j) { return 3 * token(i, j); }, [&](auto i, auto j) { return 8 * token(i, j); }};
      for (const Logit& logit : kinds) {
        const LabelScores scores = scores_of(ids, logit, draw % 3 != 0);
        const LabelScore label = chosen_label(scores);
        ++heads;
        // Broad is no preference: it is false only where less than half of the keys are used.
        labels += label.label == HeadLabel::broad ? label.score < kUsedShare : label.label != HeadLabel::mixed;
        rules_met += scores[0].score >= kClearShare || scores[1].score >= kClearShare ||
                     scores[2].score >= kClearShare || scores[3].score >= kClearShare || scores[5].score >= kNearShare;
      }
    }
  }
  EXPECT_EQ(heads, 1440);
  EXPECT_LE(labels, heads / 100);
  EXPECT_GT(rules_met, heads / 10) << "the rules alone would not have been right either: this test tests nothing";
}

TEST(HeadLabels, TheBoundIsHoeffdings) {
  EXPECT_EQ(share_bound(0, 1, 0.1), 1);
  EXPECT_EQ(share_bound(10, 0.1, 0.1), 1);
  EXPECT_EQ(share_bound(10, 0.05, 0.1), 1);
  EXPECT_NEAR(share_bound(3, 1, 0.1), 1e-3, 1e-15);  // three times certain where one in ten is expected
  EXPECT_NEAR(share_bound(20, 0.5, 0.25), std::pow(std::sqrt(3.0) / 2, 20), 1e-12);
  // Never below the probability itself: at least 8 of 10 coins.
  EXPECT_GT(share_bound(10, 0.8, 0.5), 56.0 / 1024);
}

TEST(HeadLabels, EveryLabelStatesItsRule) {
  EXPECT_EQ(label_rules().size(), kQuestions + 1);
  for (const LabelRule& rule : label_rules()) {
    EXPECT_EQ(name_of(rule.label), rule.name);
    EXPECT_FALSE(rule.rule.empty());
  }
}

}  // namespace
}  // namespace rootdk::lab
