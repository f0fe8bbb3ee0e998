#include <cmath>

#include "lab/claims/claims.h"
#include "lab/sampling.h"
#include "lab/training/small_training.h"
#include "layers/dot_product.h"
#include "layers/elementwise.h"
#include "layers/linear.h"

namespace rootdk::lab {
namespace {

// The nodes of a random tree, each told its own name and its parent's; the answer is the label of the parent. A node
// must attend to its parent while the parent must not attend back, but to its own parent.
constexpr std::int64_t kNodes = 16, kNames = 32, kLabels = 8, kModel = 64, kBatch = 8;

double accuracy_of(bool shared, int steps, std::uint64_t seed) {
  Random random(seed, 2700);
  const Value names = make_value({kNames, kModel}), parents = make_value({kNames, kModel}),
              labels = make_value({kLabels, kModel});
  const Linear query(kModel, kModel, false), key(kModel, kModel, false), value(kModel, kModel, false);
  const Linear read_out(kLabels, kModel, true);
  Parameters parameters = {{"names.table", names}, {"parents.table", parents}, {"labels.table", labels}};
  query.collect(parameters, "query");
  if (!shared) key.collect(parameters, "key");
  value.collect(parameters, "value");
  read_out.collect(parameters, "read_out");
  initialise(parameters, random);

  return train_and_judge(parameters, steps, 2e-3, [&](Context& context) {
    std::vector<std::int32_t> own, up, label, answers;
    for (std::int64_t b = 0; b < kBatch; ++b) {
      const std::int64_t first = random.below(kNames);
      std::vector<std::int32_t> name(kNodes), mark(kNodes);
      for (std::size_t i = 0; i < kNodes; ++i) {
        name[i] = static_cast<std::int32_t>((first + static_cast<std::int64_t>(i) * 11) % kNames);
        mark[i] = static_cast<std::int32_t>(random.below(kLabels));
      }
      for (std::size_t i = 0; i < kNodes; ++i) {
        const auto parent =
            i == 0 ? std::size_t{0} : static_cast<std::size_t>(random.below(static_cast<std::int64_t>(i)));
        own.push_back(name[i]);
        up.push_back(name[parent]);
        label.push_back(mark[i]);
        answers.push_back(mark[parent]);
      }
    }
    const Value x = add(context, add(context, embed(context, own, names), embed(context, up, parents)),
                        embed(context, label, labels));
    const Value q = query(context, x), k = shared ? q : key(context, x);
    const Value read = dot_product_attention(context, {.batch = kBatch, .q = q, .k = k, .v = value(context, x)}, {});
    return Examples{read_out(context, read), std::move(answers)};
  });
}

}  // namespace

Finding separate_projections(const Bench& bench) {
  const int steps = bench.quick ? 800 : 2000;
  double accuracy[2];
  default_executor().parallel_for(2, [&](std::int64_t i) { accuracy[i] = accuracy_of(i == 1, steps, bench.seed); });
  Finding finding{.quantity = "accuracy with separate projections less that with a shared one",
                  .expected = std::nan(""),
                  .samples = steps};
  finding.measured = exact(accuracy[0] - accuracy[1]);
  finding.details = {{"separate W_Q and W_K: accuracy", 1, exact(accuracy[0])},
                     {"W_Q = W_K: accuracy", std::nan(""), exact(accuracy[1])},
                     {"parameters of Q, K, V over those of one projection", 3, exact(3)}};
  finding.figures.push_back({.kind = Figure::Kind::bars,
                             .title = "Attend to the parent",
                             .x_label = "projections",
                             .y_label = "accuracy",
                             .caption = "Random trees of 16 nodes. Chance is 1/8.",
                             .series = {{.name = "accuracy", .x = {0, 1}, .y = {accuracy[0], accuracy[1]}}},
                             .column_labels = {"separate", "shared"}});
  const bool holds = accuracy[0] > 0.9 && accuracy[1] < accuracy[0] - 0.15;
  finding.verdict = holds ? Verdict::holds : Verdict::does_not_hold;
  finding.note = holds ? "With one projection the score of child to parent equals that of parent to child, so a node "
                         "cannot tell whom it "
                         "descends from; two projections make the relation directed, at three matrices instead of one."
                       : "Sharing the projection does not hurt on a directed task here.";
  return finding;
}

}  // namespace rootdk::lab
