#pragma once

// Labels for heads: how much weight goes where, what uniform attention would put there, and whether the difference is
// more than chance. Needs nothing but rows of weights; docs/lab.md explains the test.

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>

namespace rootdk::lab {

// What a head mostly does.
enum class HeadLabel { previous_token, first_token, same_token, induction, broad, local, mixed };

inline constexpr double kClearShare = 0.4;      // of the weight: previous, first, same, induction
inline constexpr double kNearShare = 0.6;       // of the weight: local
inline constexpr double kUsedShare = 0.5;       // of the visible keys: broad
inline constexpr std::int64_t kNearTokens = 8;  // how far "local" reaches
inline constexpr std::int64_t kEnoughKeys = 8;  // rows that see fewer are left out (half of a shorter text)
inline constexpr double kSaturatedWeight = 0.9;
inline constexpr double kFalseLabels = 0.01;  // the chance that any head of a model gets a label that is not there

struct LabelRule {
  HeadLabel label;
  std::string_view name;
  std::string_view rule;  // one sentence
};
// In the order of the reports.
std::span<const LabelRule> label_rules();
std::string_view name_of(HeadLabel label);

// One question that is asked of a head: how much weight do the keys get that the label is about?
struct LabelScore {
  HeadLabel label = HeadLabel::mixed;
  // Means over rows: the weight on those keys (broad: effective keys over visible ones), and what uniform attention
  // over the same mask would give. NaN where no row raises the question.
  double score = 0, chance = 0;
  std::int64_t rows = 0;     // that raise the question
  std::int64_t tokens = 0;   // different query tokens among them: rows of one token count as one observation
  double p_value = 1;        // of a share so large without a preference for those keys: an upper bound
  bool significant = false;  // p_value stays below kFalseLabels after correction for all heads and questions

  // The weight above chance, as a difference.
  double excess() const { return score - chance; }
};

inline constexpr std::size_t kQuestions = 6;             // every label but mixed
using LabelScores = std::array<LabelScore, kQuestions>;  // in the order of HeadLabel

// The keys [first, last] that a row may see.
struct VisibleKeys {
  std::int64_t first = 0, last = 0;

  std::int64_t count() const { return last - first + 1; }
  bool contains(std::int64_t key) const { return first <= key && key <= last; }
};

// Adds up the rows of one head. Rows that see too few keys to tell anything are for the caller to leave out.
class HeadRows {
 public:
  // query_ids and key_ids are the same sequence unless the head crosses from a decoder to an encoder.
  HeadRows(std::span<const std::int32_t> query_ids, std::span<const std::int32_t> key_ids, bool crosses)
      : query_ids_(query_ids), key_ids_(key_ids), crosses_(crosses) {}

  void add_weights(std::int64_t row, VisibleKeys visible, std::span<const float> weights);  // weights [keys]
  void add_entropy(std::int64_t row, VisibleKeys visible, double entropy);

  // heads: of the whole model, whichever of them are looked at, so that a head's label does not depend on the choice.
  LabelScores scores(std::int64_t heads) const;
  double mean_distance() const;  // sum p |i - j|, the mean over rows; NaN where the head crosses

 private:
  struct TokenSum {
    double score = 0, chance = 0;
    std::int64_t rows = 0;
  };
  void add(HeadLabel label, std::int64_t row, double score, double chance);

  std::span<const std::int32_t> query_ids_, key_ids_;
  bool crosses_;
  std::array<std::map<std::int32_t, TokenSum>, kQuestions> sums_;  // by query token
  double distance_ = 0;
  std::int64_t distance_rows_ = 0;
};

// The label that the scores support, or mixed. Of the four clear labels the one with the most weight above chance wins.
LabelScore chosen_label(const LabelScores& scores);

// An upper bound of the probability that the mean of `count` independent shares in [0, 1] reaches `mean` where their
// expected mean is `expected` (Hoeffding 1963, theorem 1).
double share_bound(std::int64_t count, double mean, double expected);

}  // namespace rootdk::lab
