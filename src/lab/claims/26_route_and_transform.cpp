#include <cmath>

#include "lab/claims/claims.h"
#include "lab/sampling.h"
#include "lab/training/small_training.h"
#include "layers/elementwise.h"
#include "layers/feed_forward.h"
#include "layers/multi_head_attention.h"

namespace rootdk::lab {
namespace {

// Fetch the symbol that stands behind a key, then look the pair (symbol, operator) up in a table: the first needs
// routing between tokens, the second a non-linear function of one token. The table is the exclusive or of the bits, of
// which no linear read-out gets more than chance.
constexpr std::int64_t kPairs = 8, kKeys = 16, kSymbols = 8, kModel = 64, kBatch = 32;

struct Parts {
  bool attention, feed_forward;
};

double accuracy_of(Parts parts, int steps, std::uint64_t seed) {
  Random random(seed, 2600);
  const Value keys = make_value({kKeys, kModel}), symbols = make_value({kSymbols, kModel}),
              operators = make_value({kSymbols, kModel});
  const MultiHeadAttention attention({.d_model = kModel, .heads = 1});
  const FeedForward feed_forward({.d_model = kModel, .d_ff = 4 * kModel, .activation = Activation::relu, .bias = true});
  const Linear read_out(kSymbols, kModel, true);
  Parameters parameters = {{"keys.table", keys}, {"symbols.table", symbols}, {"operators.table", operators}};
  if (parts.attention) attention.collect(parameters, "attention");
  if (parts.feed_forward) feed_forward.collect(parameters, "feed_forward");
  read_out.collect(parameters, "read_out");
  initialise(parameters, random);

  return train_and_judge(parameters, steps, 2e-3, [&](Context& context) {
    std::vector<std::int32_t> pair_keys, pair_symbols, question, operation, answers;
    for (std::int64_t b = 0; b < kBatch; ++b) {
      const std::int64_t first = random.below(kKeys), asked = random.below(kPairs);
      for (std::int64_t p = 0; p < kPairs; ++p) {
        pair_keys.push_back(
            static_cast<std::int32_t>((first + p * 5) % kKeys));  // 5 and 16 share no factor: no key twice
        pair_symbols.push_back(static_cast<std::int32_t>(random.below(kSymbols)));
      }
      const auto at = static_cast<std::size_t>(b * kPairs + asked);
      question.push_back(pair_keys[at]);
      operation.push_back(static_cast<std::int32_t>(random.below(kSymbols)));
      answers.push_back(pair_symbols[at] ^ operation.back());
    }
    Value x = add(context, embed(context, question, keys), embed(context, operation, operators));
    if (parts.attention) {
      const Value pairs = add(context, embed(context, pair_keys, keys), embed(context, pair_symbols, symbols));
      x = add(context, x, attention(context, x, {.batch = kBatch, .source = pairs}));
    }
    if (parts.feed_forward) x = add(context, x, feed_forward(context, x));
    return Examples{read_out(context, x), std::move(answers)};
  });
}

}  // namespace

Finding route_and_transform(const Bench& bench) {
  const int steps = bench.quick ? 1200 : 2500;
  const Parts cases[] = {{true, false}, {false, true}, {true, true}};
  double accuracy[3];
  default_executor().parallel_for(3, [&](std::int64_t i) { accuracy[i] = accuracy_of(cases[i], steps, bench.seed); });
  constexpr double kChance = 1.0 / kSymbols;
  Finding finding{.quantity = "accuracy with attention and feed-forward",
                  .expected = 1,
                  .measured = exact(accuracy[2]),
                  .samples = steps};
  finding.details = {{"attention alone", kChance, exact(accuracy[0])},
                     {"feed-forward alone", kChance, exact(accuracy[1])},
                     {"both", 1, exact(accuracy[2])}};
  finding.figures.push_back(
      {.kind = Figure::Kind::bars,
       .title = "Fetch by key, then apply a table",
       .x_label = "model",
       .y_label = "accuracy",
       .caption = "Chance is 1/8.",
       .series = {{.name = "accuracy", .x = {0, 1, 2}, .y = {accuracy[0], accuracy[1], accuracy[2]}}},
       .column_labels = {"attention", "feed-forward", "both"}});
  const bool holds = accuracy[0] < 0.5 && accuracy[1] < 0.3 && accuracy[2] > 0.8;
  finding.verdict = holds ? Verdict::holds : Verdict::does_not_hold;
  finding.note = holds ? "Attention brings the right symbol but cannot apply the table to it; the feed-forward layer "
                         "could, but never sees "
                         "the symbol. Together they do both."
                       : "One part alone solves the task here, or both together do not.";
  return finding;
}

}  // namespace rootdk::lab
