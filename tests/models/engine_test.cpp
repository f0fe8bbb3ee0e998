// Models as an engine: sequences over one cache, with the same bits in any company; weights in their own type, int8 and
// int4; caches of every type.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "models/checkpoint.h"
#include "models/generate.h"
#include "rootdk/error.h"
#include "support/temporary_folder.h"

namespace rootdk {
namespace {

namespace fs = std::filesystem;

fs::path fixture(const std::string& name) { return fs::path(ROOTDK_TEST_DATA) / "models" / name; }

using Ids = std::vector<std::int32_t>;

Ids some_ids(std::size_t count, std::int32_t seed) {
  Ids ids;
  for (std::size_t i = 0; i < count; ++i) ids.push_back(1 + (seed * 31 + static_cast<std::int32_t>(i) * 17) % 60);
  return ids;
}

std::vector<float> numbers(const Value& value) {
  const std::span<const float> all = std::as_const(*value).value().values<float>();
  return {all.begin(), all.end()};
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(double{a[i]} - b[i]));
  return largest;
}

// A fixture's folder with its weights in another type, or rounded to it and stored in f32.
class Rewritten : public test::TemporaryFolder {
 public:
  Rewritten(const std::string& name, DType rounded, DType stored) {
    const SafetensorsFile file = SafetensorsFile::open(fixture(name) / "model.safetensors");
    std::vector<Tensor> kept;
    std::vector<NamedTensor> tensors;
    for (const std::string& tensor : file.names()) {
      kept.push_back(convert(convert(file.tensor(tensor), rounded), stored));
      tensors.push_back({tensor, std::as_const(kept.back())});
    }
    write_safetensors(path() / "model.safetensors", tensors);
    fs::copy_file(fixture(name) / "config.json", path() / "config.json");
  }
};

class Decoder : public ::testing::TestWithParam<std::string> {
 protected:
  const Transformer model = load_model(fixture(GetParam()));
  bool both() const { return model.config().encoder.has_value(); }
  Ids source(std::int32_t seed) const {
    return both() ? some_ids(static_cast<std::size_t>(5 + seed), 7 + seed) : Ids();
  }
};

// Prompts, single tokens and several tokens at once, of sequences that begin and end at different times.
TEST_P(Decoder, LogitsHaveTheSameBitsInAnyCompany) {
  for (const DType type : {DType::f32, DType::bf16, DType::i8}) {
    Context context{.executor = &shared_executor(2)};
    ModelCache together = model.make_cache({.dtype = type, .tokens = 1}), alone = model.make_cache({.dtype = type});
    std::vector<SequenceId> many, one;
    for (std::int32_t i = 0; i < 6; ++i) {
      many.push_back(model.open_sequence(context, together, source(i)));
      one.push_back(model.open_sequence(context, alone, source(i)));
    }
    // What each call gives to the sequences.
    const std::int64_t calls[][6] = {{7, 0, 1, 0, 0, 12}, {1, 9, 1, 0, 4, 1}, {3, 1, 1, 11, 1, 0}, {1, 1, 1, 1, 1, 1}};
    std::int32_t seed = 0;
    for (const auto& tokens : calls) {
      Ids ids;
      std::vector<KvStep> steps;
      std::vector<float> expected;
      for (std::size_t i = 0; i < 6; ++i) {
        if (tokens[i] == 0) continue;
        const Ids mine = some_ids(static_cast<std::size_t>(tokens[i]), ++seed);
        ids.insert(ids.end(), mine.begin(), mine.end());
        steps.push_back({.sequence = many[i], .tokens = tokens[i]});
        const std::vector<float> logits = numbers(model.extend(
            context, alone, mine, KvStep{.sequence = one[i], .tokens = tokens[i]}, ExtendOutput::all_tokens));
        expected.insert(expected.end(), logits.begin(), logits.end());
      }
      const std::vector<float> found = numbers(model.extend(context, together, ids, steps, ExtendOutput::all_tokens));
      ASSERT_EQ(found.size(), expected.size());
      EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)), 0);
    }
  }
}

TEST_P(Decoder, ACacheGivesWhatTheWholeSequenceGives) {
  Context context;
  const Ids ids = some_ids(30, 3);
  ModelInput input;
  (both() ? input.decoder_ids : input.ids) = ids;
  if (both()) input.ids = source(0);
  const std::vector<float> whole = numbers(model.forward(context, input).output);
  double size = 0;
  for (const float x : whole) size = std::max(size, std::abs(double{x}));
  const struct {
    DType type;
    double tolerance;
  } types[] = {{DType::f32, 1e-5}, {DType::f16, 5e-3}, {DType::bf16, 3e-2}, {DType::i8, 5e-2}, {DType::f8e4m3, 0.15}};
  const bool routed = model.config().stack.blocks.front().feed_forward.experts > 0;
  for (const auto& [type, tolerance] : types) {
    if (routed && type != DType::f32) continue;  // rounded keys may send a token to other experts
    ModelCache cache = model.make_cache({.dtype = type});
    const SequenceId sequence = model.open_sequence(context, cache, input.decoder_ids.empty() ? Ids() : input.ids);
    std::vector<float> parts;
    std::size_t done = 0;
    for (const std::int64_t tokens : {13, 1, 1, 5, 10}) {
      const std::vector<float> part =
          numbers(model.extend(context, cache, std::span(ids).subspan(done, static_cast<std::size_t>(tokens)),
                               KvStep{.sequence = sequence, .tokens = tokens}, ExtendOutput::all_tokens));
      parts.insert(parts.end(), part.begin(), part.end());
      done += static_cast<std::size_t>(tokens);
    }
    EXPECT_LT(largest_difference(parts, whole), tolerance * size) << name_of(type);
  }
}

TEST_P(Decoder, TrimAndForkGoBackToWhatWas) {
  Context context;
  ModelCache cache = model.make_cache();
  const SequenceId sequence = model.open_sequence(context, cache, source(1));
  auto extend = [&](SequenceId to, const Ids& ids) {
    return numbers(
        model.extend(context, cache, ids, KvStep{.sequence = to, .tokens = static_cast<std::int64_t>(ids.size())}));
  };
  extend(sequence, some_ids(9, 1));
  const std::vector<float> first = extend(sequence, {5});
  extend(sequence, {8, 9});
  const SequenceId branch = cache.fork(sequence, 9);
  EXPECT_EQ(extend(branch, {5}), first);
  cache.keys.trim(sequence, 9);
  EXPECT_EQ(extend(sequence, {5}), first);
  cache.close(branch);
  EXPECT_THROW(extend(branch, {5}), Error);
}

INSTANTIATE_TEST_SUITE_P(All, Decoder,
                         ::testing::Values("bloom", "gemma2", "gemma3", "gpt2", "gpt_neox", "gpt_oss", "llama",
                                           "marian", "mistral", "mixtral", "olmo2", "phi3", "qwen2", "qwen3", "t5"),
                         [](const auto& info) { return info.param; });

std::vector<float> logits_of(const Transformer& model) {
  Context context;
  return numbers(model.forward(context, {.ids = some_ids(12, 2)}).output);
}

// Weights that are read in their own type give the bits of the same numbers in f32.
TEST(StoredWeights, HalfPrecisionIsExact) {
  for (const char* name : {"llama", "gpt2", "gpt_neox", "gpt_oss"}) {
    for (const DType type : {DType::bf16, DType::f16}) {
      const Rewritten narrow(name, type, type), wide(name, type, DType::f32);
      EXPECT_EQ(logits_of(load_model(narrow.path())), logits_of(load_model(wide.path()))) << name;
      EXPECT_EQ(load_model(narrow.path()).config().stored_type, type);
    }
  }
}

// Activations that are rounded to bf16 are near, and a token's logits still do not depend on the others.
TEST(StoredWeights, RoundedActivationsAreNear) {
  const Rewritten narrow("llama", DType::bf16, DType::bf16);
  const std::vector<float> exact = logits_of(load_model(narrow.path()));
  const Transformer model = load_model(narrow.path(), {.activations = DType::bf16});
  const std::vector<float> rounded = logits_of(model);
  double size = 0;
  for (const float x : exact) size = std::max(size, std::abs(double{x}));
  EXPECT_GT(largest_difference(rounded, exact), 0);
  EXPECT_LT(largest_difference(rounded, exact), 0.02 * size);
  Context context;
  std::vector<std::int32_t> both = some_ids(12, 2);
  const std::vector<std::int32_t> other = some_ids(12, 3);
  both.insert(both.end(), other.begin(), other.end());
  const std::vector<float> in_a_batch = numbers(model.forward(context, {.batch = 2, .ids = both}).output);
  EXPECT_TRUE(std::equal(rounded.begin(), rounded.end(), in_a_batch.begin()));
  EXPECT_THROW(load_model(narrow.path(), {.activations = DType::f16}), Error);
}

// Over a cache of 16 bits the queries are rounded, too: near what the whole sequence gives, and the same in company.
TEST(StoredWeights, RoundedActivationsOverACacheAreNearAndTheSameInCompany) {
  const Rewritten narrow("llama", DType::bf16, DType::bf16);
  const Transformer model = load_model(narrow.path(), {.activations = DType::bf16});
  Context context;
  const Ids ids = some_ids(12, 2), other = some_ids(9, 5);
  const std::vector<float> whole = numbers(model.forward(context, {.ids = ids}, {.last_only = true}).output);
  double size = 0;
  for (const float x : whole) size = std::max(size, std::abs(double{x}));
  for (const DType type : {DType::f32, DType::bf16, DType::i8}) {
    std::vector<float> alone, together;
    for (const bool company : {false, true}) {
      ModelCache cache = model.make_cache({.dtype = type});
      std::vector<KvStep> steps{{.sequence = model.open_sequence(context, cache), .tokens = 8}};
      if (company) steps.push_back({.sequence = model.open_sequence(context, cache), .tokens = 5});
      Ids given(ids.begin(), ids.begin() + 8);
      if (company) given.insert(given.end(), other.begin(), other.begin() + 5);
      model.extend(context, cache, given, steps);
      for (std::size_t i = 8; i < 12; ++i) {
        for (KvStep& step : steps) step.tokens = 1;
        given = {ids[i]};
        if (company) given.push_back(other[i - 3]);
        (company ? together : alone) = numbers(model.extend(context, cache, given, steps));
      }
    }
    together.resize(alone.size());
    EXPECT_EQ(alone, together) << name_of(type);
    EXPECT_LT(largest_difference(alone, whole), 0.05 * size) << name_of(type);
  }
}

TEST(StoredWeights, IntegersAreNearTheirWeights) {
  for (const char* name : {"llama", "gpt2", "gemma2"}) {
    const std::vector<float> exact = logits_of(load_model(fixture(name)));
    double size = 0;
    for (const float x : exact) size = std::max(size, std::abs(double{x}));
    const double i8 = largest_difference(logits_of(load_model(fixture(name), {.weights = WeightFormat::i8})), exact);
    const double i4 = largest_difference(logits_of(load_model(fixture(name), {.weights = WeightFormat::i4})), exact);
    EXPECT_GT(i8, 0) << name;
    EXPECT_LT(i8, 0.1 * size) << name;  // of weights and activations; these models magnify both
    EXPECT_GT(i4, i8) << name;
    EXPECT_LT(i4, 0.6 * size) << name;
  }
}

// What products have read is counted by matrix: of a mixture the experts that a token goes to, and no others.
TEST(StoredWeights, ATokenReadsTheExpertsItGoesTo) {
  for (const char* name : {"mixtral", "llama"}) {
    const Transformer model = load_model(fixture(name));
    const FeedForwardConfig& feed_forward = model.config().stack.blocks.front().feed_forward;
    double expected = 0;
    for (const Parameter& parameter : model.parameters()) {
      if (!parameter.value->stored() || parameter.name == "embedding.weight") continue;
      const double bytes = static_cast<double>(bytes_with_scales(parameter.value->stored()->matrix));
      const bool expert = parameter.name.find(".experts.") != std::string::npos;
      expected +=
          expert ? bytes * static_cast<double>(feed_forward.top_k) / static_cast<double>(feed_forward.experts) : bytes;
    }
    ASSERT_FALSE(model.config().tied_head);
    LayerTimes times;
    Context context{.times = &times};
    model.forward(context, {.ids = {3}});
    EXPECT_DOUBLE_EQ(times.weight_bytes, expected) << name;
  }
}

TEST(StoredWeights, HaveNoGradient) {
  const Transformer model = load_model(fixture("llama"));
  Tape tape;
  Context context{.tape = &tape};
  EXPECT_THROW(model.forward(context, {.ids = {1, 2, 3}}), Error);
}

TEST(Extend, BadStepsAreErrors) {
  const Transformer model = load_model(fixture("llama"));
  Context context;
  ModelCache cache = model.make_cache();
  const SequenceId sequence = model.open_sequence(context, cache);
  EXPECT_THROW(model.extend(context, cache, Ids{1, 2}, KvStep{.sequence = sequence, .tokens = 3}), Error);
  EXPECT_THROW(model.extend(context, cache, Ids{}, KvSteps{}), Error);
  EXPECT_THROW(model.open_sequence(context, cache, Ids{1}), Error);
  EXPECT_EQ(cache.keys.length(sequence), 0);
}

}  // namespace
}  // namespace rootdk
