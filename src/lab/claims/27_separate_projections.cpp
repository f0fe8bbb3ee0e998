#include <cmath>

#include "lab/claims/claims.h"
#include "lab/sampling.h"
#include "lab/sentence.h"
#include "lab/training/small_training.h"
#include "layers/dot_product.h"
#include "layers/elementwise.h"
#include "layers/linear.h"

namespace rootdk::lab {
namespace {

// The nodes of a random tree, each told its own name and its parent's; the answer is the label of the parent. A node
// must attend to its parent while the parent must not attend back, but to its own parent.
constexpr std::int64_t kNodes = 16, kNames = 32, kLabels = 8, kModel = 64, kBatch = 8;

struct Trained {
  double accuracy = 0;
  std::int64_t projection_parameters = 0;  // of W_Q, W_K and W_V
};

Trained train(bool shared, int steps, std::uint64_t seed) {
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

  Trained trained;
  for (const Parameter& parameter : parameters) {
    if (parameter.value == query.weight || parameter.value == key.weight || parameter.value == value.weight)
      trained.projection_parameters += parameter.value->elements();
  }
  trained.accuracy = train_and_judge(parameters, steps, 2e-3, [&](Context& context) {
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
  return trained;
}

}  // namespace

Finding separate_projections(const Bench& bench) {
  const int steps = bench.quick ? 800 : 2000;
  Trained trained[2];
  default_executor().parallel_for(2, [&](std::int64_t i) { trained[i] = train(i == 1, steps, bench.seed); });
  const double accuracy[] = {trained[0].accuracy, trained[1].accuracy};
  const std::int64_t asked = steps / 10 * kBatch * kNodes;
  Finding finding{.quantity = "accuracy with separate projections less that with a shared one",
                  .expected = std::nan(""),
                  .samples = asked};
  finding.measured = exact(accuracy[0] - accuracy[1]);
  const auto share = [&](double right) {
    return share_interval(std::lround(right * static_cast<double>(asked)), asked);
  };
  const double matrix = static_cast<double>(kModel * kModel);
  const double separate_matrices = static_cast<double>(trained[0].projection_parameters) / matrix,
               shared_matrices = static_cast<double>(trained[1].projection_parameters) / matrix;
  finding.details = {{"separate W_Q and W_K: accuracy", 1, share(accuracy[0])},
                     {"W_Q = W_K: accuracy", std::nan(""), share(accuracy[1])},
                     {"separate W_Q and W_K: projection matrices, counted", 3, exact(separate_matrices)},
                     {"W_Q = W_K: projection matrices, counted", 2, exact(shared_matrices)}};
  finding.figures.push_back({.kind = Figure::Kind::bars,
                             .title = "Attend to the parent",
                             .x_label = "projections",
                             .y_label = "accuracy",
                             .caption = "Random trees of 16 nodes. Chance is 1/8.",
                             .series = {{.name = "accuracy", .x = {0, 1}, .y = {accuracy[0], accuracy[1]}}},
                             .column_labels = {"separate", "shared"}});
  const bool holds = accuracy[0] > 0.9 && accuracy[1] < accuracy[0] - 0.15;
  finding.verdict = holds ? Verdict::holds : Verdict::does_not_hold;
  finding.note =
      holds ? "With one projection the score of child to parent equals that of parent to child, so a node "
              "cannot tell its parent from its children: " +
                  say(accuracy[1]) +
                  " of the answers are right. Two projections make the relation directed: " + say(accuracy[0]) +
                  ", with " + say(separate_matrices, 1) + " matrices instead of " + say(shared_matrices, 1) + "."
            : "Sharing the projection does not hurt on a directed task here.";
  finding.setup = "random trees of 16 nodes, 8 labels; d_model 64, one layer, Adam";
  return finding;
}

}  // namespace rootdk::lab
