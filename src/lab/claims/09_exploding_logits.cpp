#include <cmath>

#include "lab/claims/claims.h"
#include "lab/sampling.h"
#include "lab/training/recall_task.h"

namespace rootdk::lab {
namespace {

constexpr double kRate = 0.03, kHighRate = 0.1;

}  // namespace

Finding exploding_logits(const Bench& bench) {
  const std::vector<Remedy> remedies = {{.name = "no scale", .scale = Scale::none()},
                                        {.name = "1 / sqrt(d_k)"},
                                        {.name = "no scale, softcap 50", .scale = Scale::none(), .softcap = 50},
                                        {.name = "no scale, QK-clip 10", .scale = Scale::none(), .qk_clip = 10},
                                        {.name = "cosine, gain 10", .score = Score::cosine, .scale = 10.0}};
  const std::int64_t seeds = bench.quick ? 1 : 3;
  // Projections start as common frameworks start them: uniform in +- 1 / sqrt(inputs), a third of the variance.
  const double gain = 1 / std::sqrt(3.0);
  const auto count = static_cast<std::int64_t>(remedies.size()) * seeds;
  std::vector<TrainingResult> results(static_cast<std::size_t>(count));
  default_executor().parallel_for(count, [&](std::int64_t index) {
    results[static_cast<std::size_t>(index)] =
        train_recall({.remedy = remedies[static_cast<std::size_t>(index / seeds)],
                      .optimizer = Optimizer::sgd_momentum,
                      .learning_rate = kRate,
                      .projection_gain = gain,
                      .seed = bench.seed + static_cast<std::uint64_t>(index % seeds)});
    bench.progress("training runs", static_cast<double>(index + 1) / static_cast<double>(count));
  });

  // Three times the rate, where a scale alone is not enough either.
  const TrainingResult faster = train_recall({.remedy = remedies[1],
                                              .optimizer = Optimizer::sgd_momentum,
                                              .learning_rate = kHighRate,
                                              .projection_gain = gain,
                                              .seed = bench.seed});
  constexpr double kNearChance = 0.15;
  Finding finding{.quantity = "seeds that end at chance without a scale, share", .expected = 1, .samples = seeds};
  Figure logits{.title = "Largest logit while training",
                .x_label = "step",
                .y_label = "max logit",
                .caption = "SGD with momentum 0.9, learning rate 0.03. The kernel reports the maximum as it goes.",
                .log_y = true};
  Figure entropy{
      .title = "Entropy while training", .x_label = "step", .y_label = "entropy (nats)", .caption = "Mean over rows."};
  Figure gradient{.title = "Gradient norm while training",
                  .x_label = "step",
                  .y_label = "norm",
                  .caption = "Over all parameters.",
                  .log_y = true};
  bool remedies_work = true;
  std::int64_t at_chance = 0;
  for (std::size_t r = 0; r < remedies.size(); ++r) {
    double accuracy = 0;
    for (std::int64_t s = 0; s < seeds; ++s) {
      const TrainingResult& result = results[r * static_cast<std::size_t>(seeds) + static_cast<std::size_t>(s)];
      accuracy += result.accuracy / static_cast<double>(seeds);
      if (r == 0) {
        at_chance += result.accuracy < kNearChance;
        finding.details.push_back(
            {"no scale, seed " + std::to_string(s) + ": last max logit" + (result.finite ? "" : " (then NaN)"),
             std::nan(""), exact(result.max_logit.back())});
      }
    }
    const TrainingResult& first = results[r * static_cast<std::size_t>(seeds)];
    logits.series.push_back({.name = remedies[r].name, .x = first.steps, .y = first.max_logit});
    entropy.series.push_back({.name = remedies[r].name, .x = first.steps, .y = first.entropy});
    gradient.series.push_back({.name = remedies[r].name, .x = first.steps, .y = first.gradient_norm});
    finding.details.push_back({std::string(remedies[r].name) + ": accuracy", r == 0 ? 1.0 / 16 : 1.0, exact(accuracy)});
    if (r > 0) remedies_work &= accuracy > 0.9;
  }
  finding.details.push_back({"1 / sqrt(d_k) at learning rate 0.1: accuracy", std::nan(""), exact(faster.accuracy)});
  finding.measured = share_interval(at_chance, seeds);
  finding.figures = {std::move(logits), std::move(entropy), std::move(gradient)};
  const bool holds = at_chance == seeds && remedies_work;
  const bool at_any_rate = faster.accuracy > 0.9;
  finding.verdict = !holds ? Verdict::does_not_hold : at_any_rate ? Verdict::holds : Verdict::holds_with_a_correction;
  finding.note =
      !holds        ? "Not every unscaled run fails, or not every remedy works."
      : at_any_rate ? "Without a scale the logits run away and the model ends at chance; a softcap, QK-clip, cosine or "
                      "1 / sqrt(d_k) each keep it on the ground."
                    : "Without a scale the logits run away and the model ends at chance; a softcap, QK-clip, cosine or "
                      "1 / sqrt(d_k) each keep it on the ground at learning rate 0.03. It is a matter of the step as "
                      "well: at 0.1 the logits of the scaled layer run away too.";
  return finding;
}

}  // namespace rootdk::lab
