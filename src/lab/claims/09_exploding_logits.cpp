#include <algorithm>
#include <atomic>
#include <cmath>

#include "lab/claims/claims.h"
#include "lab/sampling.h"
#include "lab/sentence.h"
#include "lab/training/recall_task.h"

namespace rootdk::lab {
namespace {

// The embeddings start at half the deviation of claim 8, so that the unscaled layer starts with logits of deviation 8
// instead of 32: sharp, but not one-hot. What happens to the logits afterwards is the training's doing.
constexpr RecallTask kTask{.embedding_deviation = 0.5};

// One way to hold the logits, and its runs: a seed each.
struct Course {
  Remedy remedy;
  std::vector<TrainingResult> results{};

  double accuracy() const {
    double sum = 0;
    for (const TrainingResult& result : results) sum += result.accuracy;
    return sum / static_cast<double>(results.size());
  }
};

// Every (remedy, seed) is one training run; runs are spread over the threads.
void train_all(const Bench& bench, std::vector<Course>& courses) {
  struct Place {
    Course* course;
    std::size_t seed;
  };
  std::vector<Place> places;
  for (Course& course : courses) {
    for (std::size_t seed = 0; seed < course.results.size(); ++seed) places.push_back({&course, seed});
  }
  const auto count = static_cast<std::int64_t>(places.size());
  std::atomic<std::int64_t> done = 0;
  default_executor().parallel_for(count, [&](std::int64_t index) {
    const Place& place = places[static_cast<std::size_t>(index)];
    place.course->results[place.seed] = train_recall({.task = kTask,
                                                      .remedy = place.course->remedy,
                                                      .optimizer = Optimizer::sgd_momentum,
                                                      .learning_rate = 0.1,
                                                      .steps = 1200,
                                                      .seed = bench.seed + place.seed});
    bench.progress("training runs", static_cast<double>(++done) / static_cast<double>(count));
  });
}

}  // namespace

Finding exploding_logits(const Bench& bench) {
  const std::size_t unscaled_seeds = bench.quick ? 1 : 5, remedy_seeds = bench.quick ? 1 : 3;
  std::vector<Course> courses = {{.remedy = {.name = "no scale", .scale = Scale::none()}},
                                 {.remedy = {.name = "1 / sqrt(d_k)"}},
                                 {.remedy = {.name = "no scale, softcap 50", .scale = Scale::none(), .softcap = 50}},
                                 {.remedy = {.name = "no scale, QK-clip 10", .scale = Scale::none(), .qk_clip = 10}},
                                 {.remedy = {.name = "cosine, gain 10", .score = Score::cosine, .scale = 10.0}}};
  for (Course& course : courses) course.results.resize(&course == courses.data() ? unscaled_seeds : remedy_seeds);
  train_all(bench, courses);

  constexpr double kNearChance = 0.15;
  Finding finding{.quantity = "seeds that end at chance without a scale, share",
                  .expected = 1,
                  .samples = static_cast<std::int64_t>(unscaled_seeds)};
  Figure logits{.title = "Largest logit while training",
                .x_label = "step",
                .y_label = "max logit",
                .caption =
                    "SGD with momentum 0.9, learning rate 0.1, 1200 steps. Embeddings start with deviation 0.5 (in "
                    "claim 8 with 1).",
                .log_y = true};
  Figure entropy{
      .title = "Entropy while training", .x_label = "step", .y_label = "entropy (nats)", .caption = "Mean over rows."};
  Figure gradient{.title = "Gradient norm while training",
                  .x_label = "step",
                  .y_label = "norm",
                  .caption = "Over all parameters.",
                  .log_y = true};
  for (const Course& course : courses) {
    const char* name = course.remedy.name;
    const TrainingResult& first = course.results.front();
    logits.series.push_back({.name = name, .x = first.steps, .y = first.max_logit});
    entropy.series.push_back({.name = name, .x = first.steps, .y = first.entropy});
    gradient.series.push_back({.name = name, .x = first.steps, .y = first.gradient_norm});
    const bool unscaled = &course == courses.data();
    finding.details.push_back({std::string(name) + ": accuracy", unscaled ? 1.0 / 16 : 1.0, exact(course.accuracy())});
  }
  std::int64_t at_chance = 0;
  for (std::size_t seed = 0; seed < unscaled_seeds; ++seed) {
    const TrainingResult& result = courses[0].results[seed];
    at_chance += result.accuracy < kNearChance;
    finding.details.push_back(
        {"no scale, seed " + std::to_string(seed) + ": last max logit" + (result.finite ? "" : " (then NaN)"),
         std::nan(""), exact(result.max_logit.back())});
  }
  const bool remedies_work =
      std::all_of(courses.begin() + 1, courses.end(), [](const Course& course) { return course.accuracy() > 0.9; });
  const double uniform = std::log(static_cast<double>(kTask.pairs));
  const double entropy_at_start = courses[0].results.front().entropy.front();
  finding.details.push_back({"no scale: entropy in the first step, nats", std::nan(""), exact(entropy_at_start)});
  finding.details.push_back({"1 / sqrt(d_k): entropy in the first step, nats", std::nan(""),
                             exact(courses[1].results.front().entropy.front())});
  finding.details.push_back({"entropy of uniform attention over 32 pairs, nats", uniform, not_measured()});
  finding.details.push_back({"deviation of the embeddings at the start", 0.5, not_measured()});
  finding.measured = share_interval(at_chance, finding.samples);
  finding.figures = {std::move(logits), std::move(entropy), std::move(gradient)};
  double least_remedy = 1;
  for (std::size_t c = 1; c < courses.size(); ++c) least_remedy = std::min(least_remedy, courses[c].accuracy());
  const bool holds = at_chance == finding.samples && remedies_work;
  finding.verdict = holds ? Verdict::holds : Verdict::does_not_hold;
  finding.note = holds ? "Without a scale the logits run away and the model ends at chance (accuracy " +
                             say(courses[0].accuracy()) +
                             "); with a softcap, QK-clip, cosine or 1 / sqrt(d_k) it reaches at least " + say(least_remedy) +
                             ". The embeddings start with deviation 0.5, and the unscaled softmax "
                             "starts sharp: with an entropy of " +
                             say(entropy_at_start) + " of " + say(uniform, 3) + " nats."
                       : "Not every unscaled run fails, or not every remedy works.";
  finding.setup =
      "the task and layer of claim 8; SGD with momentum 0.9, learning rate 0.1, 1200 steps; embeddings start with "
      "deviation 0.5 (claim 8: 1)";
  return finding;
}

}  // namespace rootdk::lab
