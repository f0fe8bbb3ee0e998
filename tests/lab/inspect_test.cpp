// The profiles of heads against plain loops over the whole n x n matrix, and the rules behind the labels.

#include "lab/inspect/inspection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "core/check.h"
#include "lab/inspect/page.h"

namespace rootdk::lab {
namespace {

std::string fixture(const std::string& name) {
  return (std::filesystem::path(ROOTDK_TEST_DATA) / "models" / name).string();
}

// Words of a small language with repetitions, so that induction has rows to look at.
std::vector<std::int32_t> some_ids(std::int64_t vocab, int count) {
  std::vector<std::int32_t> ids;
  for (int i = 0; i < count; ++i)
    ids.push_back(static_cast<std::int32_t>((i * 7 + i * i % 5) % std::min<std::int64_t>(vocab, 13)));
  return ids;
}

struct Expected {
  double entropy = 0, effective = 0, sink = 0, gradient = 0, saturation = 0, distance = 0, previous = 0, same = 0,
         induction = 0, sink_chance = 0;
  int repeated = 0;
  std::vector<double> column_chance{};
};

// p: the n x n weights of one head. Rows that see fewer than half of the keys of the last row (8 at most) count only in
// the first line of numbers.
Expected by_loops(const float* p, std::int64_t n, bool causal, const std::vector<std::int32_t>& ids) {
  Expected e;
  e.column_chance.resize(ids.size());
  const std::int64_t enough = std::min<std::int64_t>(8, (n + 1) / 2);
  double counted = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    double entropy = 0, squares = 0, top = 0;
    bool repeated = false;
    const bool counts = (causal ? i + 1 : n) >= enough;
    counted += counts;
    for (std::int64_t j = 0; j < (causal ? i + 1 : n); ++j)
      e.column_chance[static_cast<std::size_t>(j)] += 1 / static_cast<double>(causal ? i + 1 : n);
    for (std::int64_t j = 0; j < n; ++j) {
      const double w = p[i * n + j];
      if (w > 0) entropy -= w * std::log(w);
      squares += w * w;
      top = std::max(top, w);
      if (!counts) continue;
      const auto at = static_cast<std::size_t>(j);
      e.distance += w * static_cast<double>(std::abs(i - j));
      if (j == i - 1) e.previous += w;
      if (ids[at] == ids[static_cast<std::size_t>(i)]) e.same += w;
      if (j > 0 && j < i - 1 && ids[at - 1] == ids[static_cast<std::size_t>(i)] &&
          ids[at] != ids[static_cast<std::size_t>(i)]) {
        e.induction += w;
        repeated = true;
      }
    }
    e.repeated += repeated;
    e.entropy += entropy / static_cast<double>(n);
    e.effective += std::exp(entropy) / static_cast<double>(n);
    e.gradient += (1 - squares) / static_cast<double>(n);
    e.saturation += (top > 0.9) / static_cast<double>(n);
    e.sink += p[i * n] / static_cast<double>(n);
  }
  for (double* share : {&e.distance, &e.same}) *share /= counted;
  e.previous /= causal ? counted : counted - 1;  // without a mask the first row counts, too, and has none before it
  if (e.repeated > 0) e.induction /= e.repeated;
  e.sink_chance = e.column_chance[0] / static_cast<double>(n);
  return e;
}

void expect_same_as_loops(const std::string& name, bool causal) {
  SCOPED_TRACE(name);
  const LoadedModel subject = LoadedModel::load(fixture(name));
  const auto ids = some_ids(subject.model.config().vocab_size, 24);
  const Inspection inspection = inspect(subject, ids, {});
  Context context{};
  const ModelResult whole = subject.model.forward(context, {.ids = ids}, {.weights = true});
  std::size_t heads = 0;
  for (const AttentionCapture& capture : whole.attention) heads += static_cast<std::size_t>(capture.weights.size(1));
  ASSERT_EQ(inspection.heads.size(), heads);
  const auto n = static_cast<std::int64_t>(ids.size());
  for (const HeadProfile& head : inspection.heads) {
    const float* p =
        whole.attention[static_cast<std::size_t>(head.layer)].weights.view().as<float>() + head.head * n * n;
    const Expected e = by_loops(p, n, causal, ids);
    EXPECT_NEAR(head.entropy, e.entropy, 1e-4);
    EXPECT_NEAR(head.effective_keys, e.effective, 1e-3);
    EXPECT_NEAR(head.sink_mass, e.sink, 1e-5);
    EXPECT_NEAR(head.gradient_left, e.gradient, 1e-4);
    EXPECT_NEAR(head.saturation, e.saturation, 1e-6);
    EXPECT_NEAR(head.mean_distance, e.distance, 1e-3);
    EXPECT_NEAR(head.score(HeadLabel::previous_token), e.previous, 1e-5);
    EXPECT_NEAR(head.score(HeadLabel::same_token), e.same, 1e-5);
    ASSERT_GT(e.repeated, 0);
    EXPECT_NEAR(head.score(HeadLabel::induction), e.induction, 1e-5);
    EXPECT_EQ(head.scores[static_cast<std::size_t>(HeadLabel::induction)].rows, e.repeated);
    EXPECT_NEAR(head.sink_chance, e.sink_chance, 1e-6);
    for (std::size_t j = 0; j < ids.size(); ++j) EXPECT_NEAR(head.column_chance[j], e.column_chance[j], 1e-5);
    // The map of a short text is the matrix itself.
    ASSERT_EQ(head.map_rows * head.map_columns, n * n);
    for (std::size_t cell = 0; cell < head.map.size(); ++cell) EXPECT_NEAR(head.map[cell], p[cell], 1e-6);
  }
}

TEST(Inspect, ProfilesOfADecoder) { expect_same_as_loops("llama", true); }
TEST(Inspect, ProfilesOfAnEncoder) { expect_same_as_loops("bert", false); }

TEST(Inspect, EncoderDecoderShowsAllThreeKinds) {
  const LoadedModel subject = LoadedModel::load(fixture("t5"));
  const Inspection inspection = inspect(subject, some_ids(subject.model.config().vocab_size, 12), {});
  int kinds[3] = {};
  for (const HeadProfile& head : inspection.heads) {
    ++kinds[static_cast<int>(head.stack)];
    if (head.stack == StackKind::cross) {
      EXPECT_TRUE(std::isnan(head.mean_distance));
      EXPECT_EQ(head.keys, 12);
    }
  }
  for (int kind : kinds) EXPECT_GT(kind, 0);
  EXPECT_EQ(inspection.tokens.size(), inspection.ids.size());
}

TEST(Inspect, OnlyTheLayersAndHeadsAskedFor) {
  const LoadedModel subject = LoadedModel::load(fixture("gpt2"));
  const auto ids = some_ids(50, 10);
  const Inspection one = inspect(subject, ids, {.layers = {1}, .heads = {0}});
  ASSERT_EQ(one.heads.size(), 1U);
  EXPECT_EQ(one.heads[0].layer, 1);
  EXPECT_THROW(inspect(subject, ids, {.layers = {99}}), Error);
  EXPECT_THROW(inspect(subject, ids, {.heads = {-1}}), Error);
  EXPECT_THROW(inspect(subject, {}, {}), Error);
  EXPECT_THROW(subject.ids_of("text"), Error);  // no tokenizer there
}

TEST(Inspect, LongerTextsArePooledAndSampled) {
  const LoadedModel subject = LoadedModel::load(fixture("llama"));
  const auto ids = some_ids(13, 700);
  const Inspection inspection = inspect(subject, ids, {.layers = {0}});
  Context context{};
  const ModelResult whole = subject.model.forward(context, {.ids = ids}, {.weights = true});
  for (const HeadProfile& head : inspection.heads) {
    EXPECT_EQ(head.map_rows, 64);
    EXPECT_EQ(head.map_columns, 64);
    EXPECT_EQ(head.sampled_rows, 256);
    const Expected e = by_loops(whole.attention[0].weights.view().as<float>() + head.head * 700 * 700, 700, true, ids);
    EXPECT_NEAR(head.entropy, e.entropy, 1e-3);
    EXPECT_NEAR(head.mean_distance, e.distance, 0.02 * e.distance);  // 256 of 700 rows
  }
}

TEST(Inspect, OneKeyTellsNoHeadsApart) {
  const LoadedModel subject = LoadedModel::load(fixture("gpt2"));
  const Inspection inspection = inspect(subject, {7}, {});
  for (const HeadProfile& head : inspection.heads) {
    EXPECT_EQ(head.label.label, HeadLabel::mixed);
    EXPECT_EQ(head.label.score, 0);
    EXPECT_EQ(head.sink_mass, 1);
    EXPECT_EQ(head.sink_chance, 1);
  }
}

// A head's label does not depend on which heads were asked for.
TEST(Inspect, LabelsAreThoseOfTheWholeModel) {
  const LoadedModel subject = LoadedModel::load("builtin");
  std::vector<std::int32_t> ids;
  for (int i = 0; i < 100; ++i) ids.push_back(i * 37 % 900);
  const Inspection all = inspect(subject, ids, {}), one = inspect(subject, ids, {.layers = {1}, .heads = {2}});
  const auto same = std::ranges::find_if(all.heads, [](const HeadProfile& h) { return h.layer == 1 && h.head == 2; });
  for (std::size_t q = 0; q < kQuestions; ++q) {
    EXPECT_EQ(one.heads[0].scores[q].p_value, same->scores[q].p_value);
    EXPECT_EQ(one.heads[0].scores[q].significant, same->scores[q].significant);
  }
}

TEST(Inspect, WarnsBeyondTheTrainedContext) {
  const LoadedModel subject = LoadedModel::load("builtin");
  const std::vector<std::int32_t> ids(129, 5);
  const Inspection longer = inspect(subject, ids, {.layers = {0}});
  EXPECT_EQ(longer.trained_context, 128);
  ASSERT_EQ(longer.warnings.size(), 1U);
  EXPECT_NE(longer.warnings[0].find("129 tokens, and the model was trained on 128"), std::string::npos);
  EXPECT_NE(inspection_page({&longer, 1}).find("Warning: the text has 129 tokens"), std::string::npos);
  EXPECT_TRUE(inspect(subject, std::vector<std::int32_t>(128, 5), {.layers = {0}}).warnings.empty());
}

// The weights of a head out of its operands, in double.
std::vector<double> weights_of(const HeadProfile& head) {
  const HeadOperands& operands = *head.operands;
  const LogitRules& rules = operands.rules;
  std::vector<double> weights;
  for (std::int64_t i = 0; i < head.rows; ++i) {
    std::vector<double> powers;
    double sum = rules.sink ? std::exp(*rules.sink) : 0;
    for (std::int64_t j = 0; j < head.keys; ++j) {
      const bool hidden = (rules.causal && j > i) || (rules.window_left >= 0 && j < i - rules.window_left) ||
                          (!rules.causal && rules.window_right >= 0 && j > i + rules.window_right);
      double logit = 0;
      for (std::int64_t c = 0; c < operands.head_dim; ++c)
        logit += rules.scale * double{operands.q[static_cast<std::size_t>(i * operands.head_dim + c)]} *
                 double{(*operands.k)[static_cast<std::size_t>(j * operands.head_dim + c)]};
      if (rules.softcap > 0) logit = rules.softcap * std::tanh(logit / rules.softcap);
      logit -= rules.slope * static_cast<double>(std::abs(i - j));
      if (!rules.relative.empty()) {
        const auto last = static_cast<std::int64_t>(rules.relative.size()) - 1;
        logit += double{
            rules.relative[static_cast<std::size_t>(std::clamp<std::int64_t>(i - j + rules.relative_zero, 0, last))]};
      }
      powers.push_back(hidden ? 0 : std::exp(logit));
      sum += powers.back();
    }
    for (const double power : powers) weights.push_back(power / sum);
  }
  return weights;
}

// Scale, softcap, windows, sinks, distances and cross-attention: the rules beside q and k say all of it.
TEST(InspectOperands, MakeTheWeights) {
  for (const char* name : {"llama", "gemma2", "gemma3", "gpt_oss", "bloom", "t5", "modernbert", "bert", "mistral"}) {
    SCOPED_TRACE(name);
    const LoadedModel subject = LoadedModel::load(fixture(name));
    const auto ids = some_ids(subject.model.config().vocab_size, 20);
    const Inspection inspection = inspect(subject, ids, for_page({}, subject, ids.size()));
    for (const HeadProfile& head : inspection.heads) {
      ASSERT_NE(head.operands, nullptr);
      const std::vector<double> expected = weights_of(head);
      ASSERT_EQ(head.map.size(), expected.size());
      for (std::size_t cell = 0; cell < expected.size(); ++cell) EXPECT_NEAR(head.map[cell], expected[cell], 1e-5);
    }
  }
}

TEST(InspectOperands, TheClearestStayWhereThereIsNoRoom) {
  const LoadedModel subject = LoadedModel::load("builtin");
  std::vector<std::int32_t> ids;
  for (int i = 0; i < 100; ++i) ids.push_back(i * 37 % 900);
  EXPECT_EQ(inspect(subject, ids, {}).heads[0].operands, nullptr);
  const std::int64_t head_numbers =
      3 * 100 * inspect(subject, ids, for_page({}, subject, 100)).heads[0].operands->head_dim;
  const Inspection some = inspect(subject, ids, {.operand_numbers = 3 * head_numbers});
  const std::vector<std::size_t> order = sorted_by_label(some);
  for (std::size_t rank = 0; rank < order.size(); ++rank)
    EXPECT_EQ(some.heads[order[rank]].operands != nullptr, rank < 3) << rank;
  EXPECT_NE(inspection_page({&some, 1}).find("has 3 of 16 heads"), std::string::npos);
}

// However long the text: so many bytes, and a sentence about what is left out.
TEST(InspectPage, HasABoundedSize) {
  const LoadedModel subject = LoadedModel::load("builtin");
  const std::pair<std::size_t, const char*> texts[] = {
      {250, nullptr}, {3000, "“One row, computed” is left out: the page keeps q, k and v of texts up to 256 tokens"}};
  for (const auto& [tokens, note] : texts) {
    std::vector<std::int32_t> ids;
    for (std::size_t i = 0; i < tokens; ++i) ids.push_back(static_cast<std::int32_t>(i * 37 % 900));
    const Inspection inspection = inspect(subject, ids, for_page({}, subject, ids.size()));
    EXPECT_EQ(inspection.heads[0].map_rows, note ? 64 : 250);
    const std::string page = inspection_page({&inspection, 1});
    EXPECT_LT(page.size(), std::size_t{18} << 20);
    EXPECT_EQ(page.find("is left out") != std::string::npos, note != nullptr);
    if (note) {
      EXPECT_NE(page.find(note), std::string::npos);
      EXPECT_NE(page.find("The maps have 64 × 64 cells for 3000 × 3000 weights"), std::string::npos);
    }
  }
}

// Two models of different sizes: every head of either is in the page.
TEST(InspectPage, ShowsTheHeadsOfBothSides) {
  const Inspection sides[] = {inspect(LoadedModel::load(fixture("gpt2")), some_ids(50, 9), {.layers = {0}}),
                              inspect(LoadedModel::load("builtin"), some_ids(50, 9), {})};
  ASSERT_NE(sides[0].heads.size(), sides[1].heads.size());
  const std::string page = inspection_page(sides), field = "\"map_rows\": ";
  std::size_t heads = 0;
  for (std::size_t at = page.find(field); at != std::string::npos; at = page.find(field, at + 1)) ++heads;
  EXPECT_EQ(heads, sides[0].heads.size() + sides[1].heads.size());
}

TEST(InspectPage, EscapesTokensAndSetsTwoSidesBesideEachOther) {
  const LoadedModel subject = LoadedModel::load(fixture("gpt2"));
  Inspection one = inspect(subject, some_ids(50, 9), {}), other = one;
  one.tokens[2] = "</script><b>";
  one.tokens[3] = "<!--<script>";  // between these the end of the page's own script would not count
  const Inspection sides[] = {one, other};
  const std::string page = inspection_page(sides);
  EXPECT_EQ(page.find("</script><b>"), std::string::npos);
  EXPECT_EQ(page.find("<!--"), std::string::npos);
  EXPECT_NE(page.find("&lt;/script&gt;&lt;b&gt;"), std::string::npos);
  for (const char* heading : {"<h2>A: ", "<h2>B: "}) EXPECT_NE(page.find(heading), std::string::npos);
  // Without a tokenizer the text is the numbers of its tokens.
  other.tokens.clear();
  for (const std::int32_t id : other.ids) other.tokens.push_back(std::to_string(id));
  EXPECT_NE(inspection_page({&other, 1}).find("<blockquote>" + other.tokens[0] + " " + other.tokens[1] + " "),
            std::string::npos);
}

}  // namespace
}  // namespace rootdk::lab
