// Generation in company: continuous batching, speculative decoding, beams, rules on logits, stop strings.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "models/batch.h"
#include "models/beam.h"
#include "models/builtin.h"
#include "models/checkpoint.h"
#include "models/stop_strings.h"
#include "rootdk/error.h"
#include "support/error_of.h"

namespace rootdk {
namespace {

using test::error_of;
using ::testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

std::filesystem::path fixture(const std::string& name) {
  return std::filesystem::path(ROOTDK_TEST_DATA) / "models" / name;
}

Ids some_ids(std::size_t count, std::int32_t seed) {
  Ids ids;
  for (std::size_t i = 0; i < count; ++i) ids.push_back(1 + (seed * 31 + static_cast<std::int32_t>(i) * 17) % 60);
  return ids;
}

// Requests of unlike length and sampling; some join while others are under way.
TEST(Batch, EveryRequestGivesWhatItGivesAlone) {
  for (const char* name : {"llama", "gpt_oss", "t5"}) {
    const Transformer model = load_model(fixture(name));
    BatchGenerator batch(model, {.max_sequences = 3, .prompt_tokens = 10});
    std::vector<Ids> prompts;
    std::vector<GenerateParams> params;
    std::vector<Ids> streamed(9);
    auto add = [&](std::int32_t seed) {
      prompts.push_back(some_ids(static_cast<std::size_t>(1 + seed % 7), seed));
      params.push_back({.max_new = 3 + seed % 6, .stop_at_end = false});
      if (seed % 2) {
        params.back().sampling = {.greedy = false,
                                  .temperature = 0.8,
                                  .top_k = 20,
                                  .min_p = 0.01,
                                  .repetition_penalty = 1.2,
                                  .seed = static_cast<std::uint64_t>(seed)};
      }
      EXPECT_EQ(batch.add(prompts.back(), params.back()), prompts.size() - 1);
    };
    for (std::int32_t seed = 0; seed < 5; ++seed) add(seed);
    std::int32_t seed = 5;
    while (!batch.idle()) {
      for (const BatchToken& token : batch.step()) {
        streamed[token.request].push_back(token.id);
        EXPECT_EQ(token.last, batch.result(token.request).new_tokens == params[token.request].max_new);
      }
      EXPECT_LE(batch.under_way(), 3);
      if (seed < 9) add(seed++);
    }
    EXPECT_TRUE(batch.step().empty());
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      const Generation alone = generate(model, prompts[i], params[i]);
      EXPECT_EQ(batch.result(i).ids, alone.ids) << name << ", request " << i;
      EXPECT_EQ(streamed[i], Ids(alone.ids.end() - alone.new_tokens, alone.ids.end()));
    }
  }
}

TEST(Batch, RefusesWhatCannotRunAndGoesOn) {
  const Transformer model = load_model(fixture("gpt2"));
  BatchGenerator batch(model);
  EXPECT_THAT(error_of([&] { batch.add({}, {}); }), HasSubstr("no tokens"));
  EXPECT_THAT(error_of([&] { batch.add({1, 100000}, {}); }), HasSubstr("id 100000"));
  EXPECT_THAT(error_of([&] { batch.add(some_ids(65, 1), {}); }), HasSubstr("64 positions"));
  const std::size_t kept = batch.add({1, 2, 3}, {.max_new = 4, .stop_at_end = false});
  const std::size_t cancelled = batch.add({4, 5}, {.max_new = 9, .stop_at_end = false});
  batch.step();
  batch.cancel(cancelled);
  while (!batch.idle()) batch.step();
  EXPECT_EQ(batch.result(cancelled).new_tokens, 1);
  EXPECT_EQ(batch.result(kept).ids, generate(model, {1, 2, 3}, {.max_new = 4, .stop_at_end = false}).ids);
}

TEST(Speculation, GivesTheTokensOfTheModelAlone) {
  const Transformer model = load_model(fixture("llama")),
                    other = load_model(fixture("llama"), {.weights = WeightFormat::i4});
  const Ids prompt = some_ids(6, 4);
  for (const bool greedy : {true, false}) {
    GenerateParams params{.max_new = 40, .sampling = {.greedy = greedy, .seed = 3}, .stop_at_end = false};
    const Ids alone = generate(model, prompt, params).ids;
    for (const std::int64_t tokens : {1, 4, 7}) {
      for (const Transformer* draft : {&model, &other}) {
        params.draft = draft;
        params.draft_tokens = tokens;
        const Generation drafted = generate(model, prompt, params);
        EXPECT_EQ(drafted.ids, alone);
        EXPECT_GT(drafted.drafted, 0);
        EXPECT_LE(drafted.accepted, drafted.drafted);
        // A model that drafts for itself is never wrong where the likeliest token is taken.
        if (greedy && draft == &model) {
          EXPECT_EQ(drafted.accepted, drafted.drafted);
        }
      }
    }
  }
  const Transformer both = load_model(fixture("t5")), builtin = load_model(model_folder("builtin"));
  EXPECT_THAT(error_of([&] { generate(model, prompt, {.draft = &both}); }), HasSubstr("t5 has an encoder"));
  EXPECT_THAT(error_of([&] { generate(both, prompt, {.draft = &model}); }), HasSubstr("t5 has an encoder"));
  EXPECT_THAT(error_of([&] { generate(model, prompt, {.draft = &builtin}); }), HasSubstr("not 1024 tokens beside 99"));
  EXPECT_THAT(error_of([&] { generate(model, prompt, {.cache = false, .draft = &other}); }), HasSubstr("cache"));
}

TEST(Speculation, GoesOnAloneWhereTheDraftHasNoMorePositions) {
  const Transformer model = load_model(fixture("llama")), draft = load_model(fixture("gpt2"));
  ASSERT_EQ(draft.config().max_position, 64);
  for (const std::size_t length : {std::size_t{60}, std::size_t{64}, std::size_t{70}}) {
    GenerateParams params{.max_new = 20, .stop_at_end = false};
    const Ids alone = generate(model, some_ids(length, 4), params).ids;
    params.draft = &draft;
    EXPECT_EQ(generate(model, some_ids(length, 4), params).ids, alone) << length;
  }
}

// The fixture stores 64 positions for its encoder and its decoder.
TEST(Positions, OfStoredTablesBoundTheSourceAndTheText) {
  const Transformer model = load_model(fixture("marian"));
  const Generation whole = generate(model, some_ids(64, 1), {.max_new = 100, .stop_at_end = false});
  EXPECT_EQ(whole.new_tokens, 64);  // the last token needs no position
  const std::string message = error_of([&] { generate(model, some_ids(65, 1), {.max_new = 1}); });
  EXPECT_THAT(message, HasSubstr("the source has 65 tokens, but the encoder has 64 positions"));
  BatchGenerator batch(model);
  batch.add(some_ids(3, 1), {.max_new = 2, .stop_at_end = false});
  EXPECT_THAT(error_of([&] { batch.add(some_ids(65, 1), {}); }), HasSubstr("the encoder has 64 positions"));
  while (!batch.idle()) batch.step();
  EXPECT_EQ(batch.result(0).new_tokens, 2);
}

double log_probability(const Transformer& model, const Ids& text, std::size_t from) {
  Context context;
  const Value logits = model.forward(context, {.ids = text}).output;
  double sum = 0;
  for (std::size_t i = from; i < text.size(); ++i) {
    const float* row = logits->data() + static_cast<std::int64_t>(i - 1) * logits->width();
    double total = 0;
    for (std::int64_t j = 0; j < logits->width(); ++j) total += std::exp(double{row[j]});
    sum += row[text[i]] - std::log(total);
  }
  return sum;
}

TEST(BeamSearch, OneBeamIsGreedyAndManyFindTheBest) {
  const Transformer model = load_model(fixture("llama"));
  const Ids prompt = some_ids(5, 8);
  const auto one = beam_search(model, prompt, {.beams = 1, .max_new = 12, .stop_at_end = false});
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].ids, generate(model, prompt, {.max_new = 12, .stop_at_end = false}).ids);
  EXPECT_NEAR(one[0].log_probability, log_probability(model, one[0].ids, prompt.size()), 1e-3);

  // With a beam for every first token, two tokens are searched completely.
  const std::int64_t vocabulary = model.config().vocab_size;
  const auto all = beam_search(model, prompt, {.beams = vocabulary, .max_new = 2, .stop_at_end = false});
  double best = -INFINITY;
  for (std::int32_t first = 0; first < vocabulary; ++first) {
    Ids text = prompt;
    text.push_back(first);
    Context context;
    const Value logits = model.forward(context, {.ids = text}, {.last_only = true}).output;
    const auto second = std::max_element(logits->data(), logits->data() + vocabulary) - logits->data();
    text.push_back(static_cast<std::int32_t>(second));
    best = std::max(best, log_probability(model, text, prompt.size()));
  }
  EXPECT_NEAR(all[0].log_probability, best, 1e-3);
  for (std::size_t i = 1; i < all.size(); ++i) EXPECT_GE(all[i - 1].score, all[i].score);
  EXPECT_THROW(beam_search(model, prompt, {.beams = 0}), Error);
}

TEST(BeamSearch, EncoderDecodersShareTheirSource) {
  const Transformer model = load_model(fixture("t5"));
  const Ids source = some_ids(7, 2);
  const auto one = beam_search(model, source, {.beams = 1, .max_new = 8, .stop_at_end = false});
  EXPECT_EQ(one[0].ids, generate(model, source, {.max_new = 8, .stop_at_end = false}).ids);
  const auto three = beam_search(model, source, {.beams = 3, .max_new = 8, .stop_at_end = false});
  ASSERT_EQ(three.size(), 3u);
  EXPECT_GE(three[0].log_probability, one[0].log_probability - 1e-6);
}

TEST(LogitRules, MinPAndRepetition) {
  const std::vector<float> logits = {2.0f, 1.0f, -1.0f, -3.0f};
  SamplingParams params{.greedy = false, .min_p = 0.3};  // exp(1 - 2) = 0.37 stays, exp(-3) = 0.05 does not
  for (std::uint64_t step = 0; step < 300; ++step) EXPECT_LE(choose_token(logits, {}, params, step), 1);
  params.temperature = 4.0;  // flatter: exp(-3 / 4) = 0.47
  bool third = false;
  for (std::uint64_t step = 0; step < 300; ++step) third = third || choose_token(logits, {}, params, step) == 2;
  EXPECT_TRUE(third);
  const Ids text = {0, 0, 3};
  EXPECT_EQ(choose_token(logits, text, {.repetition_penalty = 1.5}, 0), 0);  // 2 / 1.5 is still the largest
  EXPECT_EQ(choose_token(logits, text, {.repetition_penalty = 2.5}, 0), 1);
  const std::vector<float> negative = {-1.0f, -1.5f};
  EXPECT_EQ(choose_token(negative, Ids{0}, {.repetition_penalty = 2.0}, 0), 1);
  EXPECT_THROW(check_sampling({.min_p = 1.5}), Error);
  EXPECT_THROW(check_sampling({.repetition_penalty = 0}), Error);
}

TEST(StopStrings, HoldBackWhatMayStillBecomeOne) {
  StopStrings stop({"</s>", "END"});
  EXPECT_EQ(stop.push("a<"), "a");
  EXPECT_EQ(stop.push("/"), "");
  EXPECT_EQ(stop.push("b E"), "</b ");
  EXPECT_EQ(stop.push("ND and more"), "");
  EXPECT_TRUE(stop.stopped());
  EXPECT_EQ(stop.push("x"), "");
  EXPECT_EQ(stop.finish(), "");
  StopStrings open({"xyz"});
  EXPECT_EQ(open.push("wxy"), "w");
  EXPECT_EQ(open.finish(), "xy");
  StopStrings both({"bc", "abcd"});
  EXPECT_EQ(both.push("1abc"), "1a");
  EXPECT_TRUE(both.stopped());
  EXPECT_THROW(StopStrings({""}), Error);
}

}  // namespace
}  // namespace rootdk
