#include "lab/training/learned_positions.h"

#include <algorithm>
#include <cmath>

#include "lab/training/small_training.h"
#include "layers/elementwise.h"
#include "layers/multi_head_attention.h"

namespace rootdk::lab {
namespace {

constexpr std::int64_t kLength = 24, kTokens = 8, kModel = 48, kBatch = 16;
constexpr int kSteps = 500;

// (W_Q p_i) . (W_K p_j) / sqrt(d_k) of every pair of positions.
std::vector<std::vector<double>> scores_of(const Value& positions, const MultiHeadAttention& attention) {
  Context context{};
  const Value q = attention.q(context, positions), k = attention.k(context, positions);
  std::vector<std::vector<double>> scores;
  for (std::int64_t i = 0; i < kLength; ++i) {
    auto& row = scores.emplace_back();
    for (std::int64_t j = 0; j < kLength; ++j) {
      double dot = 0;
      for (std::int64_t d = 0; d < kModel; ++d) dot += double{q->data()[i * kModel + d]} * k->data()[j * kModel + d];
      row.push_back(dot / std::sqrt(double{kModel}));
    }
  }
  return scores;
}

}  // namespace

LearnedPositions train_positions(std::uint64_t seed) {
  Random random(seed, 4100);
  const Value tokens = make_value({kTokens, kModel}), positions = make_value({kLength, kModel});
  const MultiHeadAttention attention({.d_model = kModel, .heads = 1});
  const Linear read_out(kTokens, kModel, true);
  Parameters parameters = {{"tokens.table", tokens}, {"positions.table", positions}};
  attention.collect(parameters, "attention");
  read_out.collect(parameters, "read_out");
  initialise(parameters, random);

  LearnedPositions learned;
  learned.before = scores_of(positions, attention);
  learned.accuracy = train_and_judge(parameters, kSteps, 3e-3, [&](Context& context) {
    std::vector<std::int32_t> text, place, answers;
    for (std::int64_t b = 0; b < kBatch; ++b) {
      for (std::int64_t i = 0; i < kLength; ++i) {
        text.push_back(static_cast<std::int32_t>(random.below(kTokens)));
        place.push_back(static_cast<std::int32_t>(i));
        answers.push_back(text[text.size() - (i > 0 ? 2 : 1)]);  // the first has nothing before it and says itself
      }
    }
    const Value x = add(context, embed(context, text, tokens), embed(context, place, positions));
    return Examples{read_out(context, attention(context, x, {.batch = kBatch})), std::move(answers)};
  });
  learned.after = scores_of(positions, attention);
  return learned;
}

}  // namespace rootdk::lab
