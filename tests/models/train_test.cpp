// Training: learns, is bit-identical for any number of threads, and after kill and resume.

#include "models/train.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "models/checkpoint.h"
#include "models/generate.h"
#include "models/tokenizer.h"
#include "support/error_of.h"
#include "support/temporary_folder.h"

namespace rootdk {
namespace {

using testing::HasSubstr;

const char* const kText =
    "The quick brown fox jumps over the lazy dog. A wizard's job is to vex chumps quickly in fog.\n"
    "Pack my box with five dozen liquor jugs. How vexingly quick daft zebras jump!\n";

TrainSettings small_settings() {
  TrainSettings settings;
  settings.model = {.d_model = 32, .layers = 2, .heads = 2, .context = 32};
  settings.batch = 4;
  settings.steps = 200;
  settings.learning_rate = 1e-2;
  settings.warmup_steps = 10;
  settings.validation_share = 0;
  return settings;
}

bool same_parameters(const Transformer& a, const Transformer& b) {
  const Parameters first = a.parameters(), second = b.parameters();
  for (std::size_t i = 0; i < first.size(); ++i) {
    if (std::memcmp(first[i].value->data(), second[i].value->data(), first[i].value->value().bytes()) != 0)
      return false;
  }
  return first.size() == second.size();
}

TEST(Train, TwoLayersOverfitASmallTextAndGenerateIt) {
  Trainer trainer(small_settings(), kText);
  const double before = trainer.step(false).loss;
  StepReport report;
  while (trainer.steps_done() < 200) report = trainer.step(trainer.steps_done() == 199);
  EXPECT_GT(before, 3.0);
  EXPECT_LT(report.loss, 0.3);
  ASSERT_EQ(report.max_logit.size(), 2u);
  ASSERT_EQ(report.entropy.size(), 2u);
  EXPECT_GT(report.entropy[0], 0.0);

  // Through the files, in half precision, and back into text.
  const test::TemporaryFolder folder;
  trainer.save_model(folder.path(), DType::f16);
  const Transformer model = load_model(folder.path());
  const Tokenizer tokenizer = Tokenizer::load(folder.path());
  const Generation generation = generate(model, tokenizer.encode("The quick brown"), {.max_new = 15});
  EXPECT_EQ(tokenizer.decode(generation.ids), "The quick brown fox jumps over");
}

// The parts of a batch give its gradient, up to the order of the sums.
TEST(Train, AccumulatedGradientsAreThoseOfTheBatch) {
  TrainSettings settings = small_settings();
  settings.qk_clip = 3.0;
  Trainer whole(settings, kText);
  settings.accumulate = 4;
  Trainer parts(settings, kText);
  for (int i = 0; i < 3; ++i) {
    const StepReport a = whole.step(true), b = parts.step(true);
    EXPECT_NEAR(a.loss, b.loss, 1e-4);
    EXPECT_NEAR(a.gradient_norm, b.gradient_norm, 1e-3 * a.gradient_norm);
    ASSERT_EQ(a.max_logit.size(), b.max_logit.size());
    for (std::size_t layer = 0; layer < a.max_logit.size(); ++layer) {
      EXPECT_NEAR(a.max_logit[layer], b.max_logit[layer], 1e-2);
      EXPECT_NEAR(a.entropy[layer], b.entropy[layer], 1e-3);
    }
  }
  EXPECT_FALSE(same_parameters(whole.model(), parts.model()));
}

TEST(Train, BitIdenticalForAnyNumberOfThreads) {
  TrainSettings settings = small_settings();
  settings.dropout = 0.1;
  Trainer one(settings, kText, &shared_executor(1)), three(settings, kText, &shared_executor(3));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(one.step(false).loss, three.step(true).loss);
  EXPECT_TRUE(same_parameters(one.model(), three.model()));
}

TEST(Train, RecomputedActivationsChangeNoBit) {
  TrainSettings settings = small_settings();
  settings.dropout = 0.1;
  settings.qk_clip = 3.0;
  settings.entropy_weight = 0.1;
  Trainer kept(settings, kText);
  settings.recompute = true;
  Trainer again(settings, kText);
  for (int i = 0; i < 4; ++i) {
    const StepReport a = kept.step(true), b = again.step(true);
    EXPECT_EQ(a.loss, b.loss);
    EXPECT_EQ(a.gradient_norm, b.gradient_norm);
    EXPECT_EQ(a.max_logit, b.max_logit);
    EXPECT_EQ(a.entropy, b.entropy);
  }
  EXPECT_TRUE(same_parameters(kept.model(), again.model()));
}

TEST(Train, AttentionInE4m3LearnsAsF32Does) {
  auto losses = [](bool fp8) {
    TrainSettings settings = small_settings();
    settings.fp8 = fp8;
    Trainer trainer(settings, kText);
    std::vector<double> all;
    for (int i = 0; i < 40; ++i) all.push_back(trainer.step(false).loss);
    return all;
  };
  const std::vector<double> plain = losses(false), rounded = losses(true);
  EXPECT_NE(plain[0], rounded[0]);
  EXPECT_NEAR(plain[0], rounded[0], 0.02);
  EXPECT_LT(rounded[39], rounded[0] * 0.8);
  EXPECT_NEAR(plain[39], rounded[39], 0.05 * plain[39]);
}

TEST(Train, EntropyWeightFlattensOrSharpensAttention) {
  auto entropy_after = [](double weight) {
    TrainSettings settings = small_settings();
    settings.entropy_weight = weight;
    Trainer trainer(settings, kText);
    StepReport report;
    for (int i = 0; i < 40; ++i) report = trainer.step(i == 39);
    return report.entropy[0] + report.entropy[1];
  };
  const double plain = entropy_after(0.0);
  EXPECT_GT(entropy_after(2.0), plain + 0.1);
  EXPECT_LT(entropy_after(-2.0), plain - 0.1);
}

TEST(Train, EveryPositionEncodingAndScaleLearns) {
  for (const char* position : {"sinusoidal", "learned", "rope", "alibi", "none"}) {
    for (const char* scale : {"none", "1/d", "1/sqrt(d)"}) {
      TrainSettings settings = small_settings();
      settings.model.position_encoding = position;
      settings.model.scale = scale;
      settings.model.qk_norm = scale[0] == 'n';
      settings.qk_clip = settings.model.qk_norm ? 0.0 : 2.0;
      Trainer trainer(settings, kText);
      const double before = trainer.step(false).loss;
      double after = 0;
      for (int i = 0; i < 20; ++i) after = trainer.step(false).loss;
      EXPECT_LT(after, before - 0.5) << position << " " << scale;
    }
  }
}

TEST(Train, ResumesBitIdentically) {
  const test::TemporaryFolder folder;
  TrainSettings settings = small_settings();
  settings.dropout = 0.1;
  settings.accumulate = 2;
  settings.qk_clip = 3.0;
  settings.entropy_weight = 0.2;
  settings.recompute = true;
  settings.seed = std::numeric_limits<std::uint64_t>::max();
  Trainer straight(settings, kText);
  for (int i = 0; i < 6; ++i) straight.step(false);
  {
    Trainer first(settings, kText);
    for (int i = 0; i < 3; ++i) first.step(false);
    first.save_state(folder.path());
  }
  Trainer second = Trainer::resume(folder.path(), kText);
  EXPECT_EQ(second.steps_done(), 3);
  for (int i = 0; i < 3; ++i) second.step(false);
  EXPECT_TRUE(same_parameters(straight.model(), second.model()));
  EXPECT_THROW(Trainer::resume(folder.path(), "another text, which is not the one that the training began with"),
               Error);
  EXPECT_THROW(Trainer::resume(folder / "nowhere", kText), Error);
}

// A process that saves after every step is killed at some moment; what it leaves can be resumed to the same end.
TEST(Train, SurvivesBeingKilled) {
  const test::TemporaryFolder folder;
  for (const useconds_t delay : {30000u, 90000u}) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      Trainer trainer(small_settings(), kText, &shared_executor(1));
      while (true) {
        trainer.step(false);
        trainer.save_state(folder.path());
      }
    }
    while (!std::filesystem::exists(folder / "training.safetensors")) usleep(1000);
    usleep(delay);
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    Trainer resumed = Trainer::resume(folder.path(), kText, &shared_executor(1));
    const std::int64_t at = resumed.steps_done();
    ASSERT_GE(at, 1);
    Trainer straight(small_settings(), kText, &shared_executor(1));
    while (straight.steps_done() < at + 2) straight.step(false);
    while (resumed.steps_done() < at + 2) resumed.step(false);
    EXPECT_TRUE(same_parameters(straight.model(), resumed.model())) << "killed after step " << at;
  }
}

TEST(Train, RefusesSettingsThatCannotWork) {
  const auto message = [](void (*spoil)(TrainSettings&), const char* text = kText) {
    TrainSettings settings = small_settings();
    spoil(settings);
    return test::error_of([&] { Trainer(settings, text); });
  };
  EXPECT_THAT(message([](TrainSettings& s) { s.model.context = 1000; }), HasSubstr("1000"));
  EXPECT_EQ(message([](TrainSettings& s) { s.model.heads = 5; }),
            "language model: d_model 32 is not a multiple of heads 5");
  EXPECT_EQ(message([](TrainSettings& s) { s.model.heads = 32; }),
            "language model: rope needs an even head_dim, and d_model 32 / heads 32 is 1");
  EXPECT_EQ(message([](TrainSettings& s) { s.accumulate = 3; }), "train: batch 4 cannot be cut into 3 equal parts");
  EXPECT_EQ(message([](TrainSettings& s) { s.accumulate = 0; }), "train: batch 4 cannot be cut into 0 equal parts");
  EXPECT_EQ(message([](TrainSettings& s) { s.entropy_weight = NAN; }), "train: entropy weight nan is not finite");
  EXPECT_EQ(message([](TrainSettings& s) { s.clip = INFINITY; }), "train: clip inf is not finite");
  EXPECT_EQ(message([](TrainSettings& s) { s.learning_rate = INFINITY; }), "train: learning rate inf is not finite");
  EXPECT_THAT(message([](TrainSettings& s) {
                s.qk_clip = 30;
                s.model.qk_norm = true;
              }),
              HasSubstr("qk_clip 30 has no effect under QK-norm"));
  EXPECT_THAT(message([](TrainSettings& s) { s.tokenizer = "word"; }), HasSubstr("word"));
  EXPECT_THAT(message([](TrainSettings&) {}, "\xFF not UTF-8"), HasSubstr("UTF-8"));
}

}  // namespace
}  // namespace rootdk
