#include <cmath>

#include "lab/claims/claims.h"
#include "lab/sampling.h"
#include "lab/sentence.h"
#include "lab/training/small_training.h"
#include "layers/elementwise.h"
#include "layers/feed_forward.h"
#include "layers/multi_head_attention.h"

namespace rootdk::lab {
namespace {

// Fetch the symbol that stands behind a key, then look the pair (symbol, operator) up in a table: the first needs
// routing between tokens, the second a non-linear function of one token. The table is the exclusive or of the bits: a
// read-out that adds up what symbol and operator say, trained with cross-entropy, learns nothing of it.
constexpr std::int64_t kPairs = 8, kKeys = 16, kSymbols = 8, kModel = 64, kBatch = 32;

struct Parts {
  bool attention, feed_forward;
  bool operator_in_query = true;  // false: the query holds the key alone, and the operator joins behind the attention
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
    const Value asked_key = embed(context, question, keys);
    Value x = add(context, asked_key, embed(context, operation, operators));
    if (parts.attention) {
      const Value pairs = add(context, embed(context, pair_keys, keys), embed(context, pair_symbols, symbols));
      const Value query = parts.operator_in_query ? x : asked_key;
      x = add(context, x, attention(context, query, {.batch = kBatch, .source = pairs}));
    }
    if (parts.feed_forward) x = add(context, x, feed_forward(context, x));
    return Examples{read_out(context, x), std::move(answers)};
  });
}

}  // namespace

Finding route_and_transform(const Bench& bench) {
  const int steps = bench.quick ? 1200 : 2500;
  // The longest first, so that the threads end together.
  const Parts cases[] = {{true, true}, {true, false}, {true, false, false}, {false, true}};
  double accuracy[4];
  default_executor().parallel_for(4, [&](std::int64_t i) { accuracy[i] = accuracy_of(cases[i], steps, bench.seed); });
  const auto [both, attention, routing, feed_forward] = accuracy;
  // The last tenth of the steps is the examination.
  const std::int64_t asked = steps / 10 * kBatch;
  const auto share = [&](double right) {
    return share_interval(std::lround(right * static_cast<double>(asked)), asked);
  };
  constexpr double kChance = 1.0 / kSymbols;
  Finding finding{
      .quantity = "accuracy with attention and feed-forward", .expected = 1, .measured = share(both), .samples = asked};
  finding.details = {{"attention alone, the operator kept out of its query", kChance, share(routing)},
                     {"attention alone", std::nan(""), share(attention)},
                     {"feed-forward alone", kChance, share(feed_forward)},
                     {"both", 1, share(both)},
                     {"chance", kChance, not_measured()}};
  finding.figures.push_back(
      {.kind = Figure::Kind::bars,
       .title = "Fetch by key, then apply a table",
       .x_label = "model",
       .y_label = "accuracy",
       .caption =
           "Chance is 1/8 = " + say(kChance, 3) + ". “Routing”: attention whose query does not see the operator.",
       .series = {{.name = "accuracy", .x = {0, 1, 2, 3}, .y = {routing, attention, feed_forward, both}}},
       .column_labels = {"routing", "attention", "feed-forward", "both"}});
  const bool holds = routing < 0.3 && attention < 0.5 && feed_forward < 0.3 && both > 0.8;
  finding.verdict = holds ? Verdict::holds : Verdict::does_not_hold;
  finding.note =
      holds ? "Together they get " + say(both) + " of the answers right. The feed-forward layer never sees the symbol and stays at " +
                  say(feed_forward) + ", near chance (" + say(kChance, 3) +
                  "). Attention that only routes brings the right symbol but cannot apply the table to it: " +
                  say(routing) +
                  ". Where its query also holds the operator, the weights depend on symbol and operator "
                  "together, and part of the table goes through the softmax: " +
                  say(attention) + "."
            : "One part alone solves the task here, or both together do not.";
  finding.setup =
      "8 pairs of 16 keys and 8 symbols, a key and an operator as the question, symbol xor operator as the answer; "
      "d_model 64, one layer, Adam";
  return finding;
}

}  // namespace rootdk::lab
