#include <algorithm>
#include <atomic>
#include <cmath>

#include "lab/claims/claims.h"
#include "lab/sampling.h"
#include "lab/sentence.h"
#include "lab/training/recall_task.h"

namespace rootdk::lab {
namespace {

struct Sweep {
  Remedy remedy;
  std::vector<double> rates, accuracy;  // accuracy: mean over seeds, a number a learning rate

  double best() const { return *std::max_element(accuracy.begin(), accuracy.end()); }
};

// Every (remedy, learning rate, seed) is one training run; runs are spread over the threads.
std::vector<Sweep> sweep(const Bench& bench, const std::vector<Remedy>& remedies, const std::vector<double>& rates,
                         int seeds, const RecallTask& task) {
  const auto per_remedy = static_cast<std::int64_t>(rates.size()) * seeds;
  const std::int64_t count = static_cast<std::int64_t>(remedies.size()) * per_remedy;
  std::vector<double> accuracy(static_cast<std::size_t>(count));
  std::atomic<std::int64_t> done = 0;
  default_executor().parallel_for(count, [&](std::int64_t index) {
    TrainingRun run{.task = task, .remedy = remedies[static_cast<std::size_t>(index / per_remedy)]};
    run.learning_rate = rates[static_cast<std::size_t>(index % per_remedy / seeds)];
    run.seed = bench.seed + static_cast<std::uint64_t>(index % seeds);
    accuracy[static_cast<std::size_t>(index)] = train_recall(run).accuracy;
    bench.progress("training runs", static_cast<double>(++done) / static_cast<double>(count));
  });
  std::vector<Sweep> sweeps;
  for (std::size_t r = 0; r < remedies.size(); ++r) {
    Sweep& one = sweeps.emplace_back(Sweep{.remedy = remedies[r], .rates = rates, .accuracy = {}});
    for (std::size_t l = 0; l < rates.size(); ++l) {
      const double* begin =
          accuracy.data() + r * static_cast<std::size_t>(per_remedy) + l * static_cast<std::size_t>(seeds);
      one.accuracy.push_back(mean({begin, static_cast<std::size_t>(seeds)}));
    }
  }
  return sweeps;
}

const std::vector<Remedy> kRemedies = {
    {.name = "no scale", .scale = Scale::none()},
    {.name = "1 / sqrt(d_k)"},
    {.name = "1 / d_k", .scale = Scale::inverse_head_dim()},
    {.name = "cosine, gain 10", .score = Score::cosine, .scale = 10.0},
    {.name = "additive", .score = Score::additive, .scale = Scale::none()},
    {.name = "QK-norm", .qk_norm = true},
    {.name = "no scale, softcap 50", .scale = Scale::none(), .softcap = 50},
    {.name = "no scale, QK-clip 10", .scale = Scale::none(), .qk_clip = 10},
};

constexpr double kLearned = 0.9;  // of the answers right: chance is 1/16

// The remedies that learn at some learning rate, as a list in words.
std::string names_that_learn(const std::vector<Sweep>& sweeps) {
  std::string names;
  for (const Sweep& one : sweeps) {
    if (one.best() > kLearned) names += (names.empty() ? "" : "; ") + std::string(one.remedy.name);
  }
  return names;
}

}  // namespace

Finding training_without_scale(const Bench& bench) {
  const std::vector<double> rates =
      bench.quick ? std::vector<double>{1e-3, 1e-2} : std::vector<double>{1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2};
  const std::vector<Remedy> main_two(kRemedies.begin(), kRemedies.begin() + 2);
  const std::vector<Remedy> others(kRemedies.begin() + 2, kRemedies.end());
  std::vector<Sweep> sweeps = sweep(bench, main_two, rates, bench.quick ? 1 : 3, {});
  if (!bench.quick) {
    const std::vector<Sweep> more = sweep(bench, others, rates, 1, {});
    sweeps.insert(sweeps.end(), more.begin(), more.end());
  }
  // The counter-case: fewer keys to choose among and a smaller head, and no scale is needed.
  const double easy = sweep(bench, {kRemedies[0]}, {1e-3}, 1, {.pairs = 16, .head_dim = 128})[0].best();

  Finding finding{.quantity = "best accuracy without a scale, over learning rates",
                  .expected = kLearned,
                  .relation = Relation::at_most};
  finding.measured = exact(sweeps[0].best());
  finding.samples = static_cast<std::int64_t>(rates.size());
  // A map and not lines: several remedies reach 1 at most learning rates, and their lines would cover each other.
  Figure figure{.kind = Figure::Kind::heat_map,
                .title = "Associative recall: accuracy",
                .x_label = "learning rate",
                .caption = "32 pairs, d_k = 512, one layer, Adam, 600 steps. Chance is 1/16 = " + say(1.0 / 16) + ".",
                .full_colour = 1,
                .show_values = true};
  for (double rate : rates) figure.column_labels.push_back(say(rate, 1));
  for (const Sweep& one : sweeps) {
    figure.row_labels.emplace_back(one.remedy.name);
    figure.matrix.push_back(one.accuracy);
    for (std::size_t l = 0; l < one.rates.size(); ++l) {
      finding.details.push_back({std::string(one.remedy.name) + ", learning rate " + say(one.rates[l], 1), std::nan(""),
                                 exact(one.accuracy[l])});
    }
  }
  finding.details.push_back({"chance", 1.0 / 16, not_measured()});
  finding.details.push_back({"no scale, 16 pairs, d_k = 128: accuracy", 0.97, exact(easy)});
  finding.figures.push_back(std::move(figure));
  const bool holds = sweeps[0].best() < kLearned && sweeps[1].best() > 0.95 && easy > kLearned;
  finding.verdict = holds ? Verdict::holds : Verdict::does_not_hold;
  finding.note =
      holds ? "At d_k = 512 no learning rate rescues the unscaled layer: it reaches " + say(sweeps[0].best()) +
                  " at best. What solves the task (over 0.9): " + names_that_learn(sweeps) +
                  ". It is a matter of size: with d_k = 128 and 16 pairs the unscaled layer reaches " + say(easy) + "."
            : "The unscaled layer learns here, or the scaled one does not.";
  finding.setup =
      "associative recall: 32 pairs of 64 keys and 16 values, a question, its value as the answer; one attention "
      "layer, "
      "d_model 64, d_k 512, batch 32; Adam, 600 steps; embeddings start with deviation 1";
  return finding;
}

}  // namespace rootdk::lab
