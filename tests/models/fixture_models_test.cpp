// The fixture models against what transformers computed for them: logits or hidden states, attention weights,
// greedy continuation with and without a cache, and padded batches.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "models/checkpoint.h"
#include "models/generate.h"
#include "support/temporary_folder.h"

namespace rootdk {
namespace {

std::filesystem::path folder_of(const std::string& name) {
  return std::filesystem::path(ROOTDK_TEST_DATA) / "models" / name;
}

std::vector<std::int32_t> ids_of(const SafetensorsFile& file, const std::string& name) {
  if (!file.contains(name)) return {};
  const ConstTensorView view = file.tensor(name);
  return {view.as<std::int32_t>(), view.as<std::int32_t>() + view.elements()};
}

double largest_difference(const ConstTensorView& expected, const float* found) {
  double largest = 0;
  for (std::int64_t i = 0; i < expected.elements(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(expected.as<float>()[i]) - found[i]));
  }
  return largest;
}

double largest_magnitude(const ConstTensorView& view) {
  double largest = 0;
  for (std::int64_t i = 0; i < view.elements(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(view.as<float>()[i])));
  }
  return largest;
}

class FixtureModel : public ::testing::TestWithParam<std::string> {
 protected:
  Transformer model = load_model(folder_of(GetParam()));
  SafetensorsFile expected = SafetensorsFile::open(folder_of(GetParam()) / "expected.safetensors");

  ModelInput input() const {
    return {.batch = expected.tensor("input_ids").size(0),
            .ids = ids_of(expected, "input_ids"),
            .mask = ids_of(expected, "attention_mask"),
            .decoder_ids = ids_of(expected, "decoder_input_ids")};
  }
};

TEST_P(FixtureModel, OutputAndAttentionWeights) {
  Context context;
  const ModelResult result = model.forward(context, input(), {.weights = true});
  const std::string name = model.config().output == ModelOutput::logits ? "logits" : "last_hidden_state";
  const ConstTensorView output = expected.tensor(name);
  ASSERT_EQ(output.elements(), result.output->value().elements());
  EXPECT_LT(largest_difference(output, result.output->data()), 2e-4 * largest_magnitude(output));

  int compared = 0;
  auto compare = [&](const std::string& prefix, const std::vector<AttentionCapture>& captures) {
    for (std::size_t layer = 0; layer < captures.size(); ++layer) {
      const std::string tensor = prefix + std::to_string(layer);
      if (!expected.contains(tensor)) continue;
      ASSERT_EQ(expected.tensor(tensor).elements(), captures[layer].weights.elements()) << tensor;
      EXPECT_LT(largest_difference(expected.tensor(tensor), captures[layer].weights.view().as<float>()), 1e-4)
          << tensor;
      ++compared;
    }
  };
  const bool both = model.config().encoder.has_value();
  compare(both ? "decoder_attention." : "attention.", result.attention);
  compare("encoder_attention.", result.encoder_attention);
  compare("cross_attention.", result.cross_attention);
  EXPECT_EQ(compared, both ? 6 : 2);
}

TEST_P(FixtureModel, GreedyContinuationWithAndWithoutCache) {
  if (model.config().output != ModelOutput::logits) GTEST_SKIP() << "gives hidden states";
  const std::vector<std::int32_t> greedy = ids_of(expected, "greedy");
  const std::vector<std::int32_t> all = ids_of(expected, "input_ids");
  const std::vector<std::int32_t> prompt(all.begin(), all.begin() + expected.tensor("input_ids").size(1));
  const std::size_t start = model.config().encoder ? 1 : prompt.size();
  for (const bool cache : {true, false}) {
    const Generation generation =
        generate(model, prompt,
                 {.max_new = static_cast<std::int64_t>(greedy.size() - start), .stop_at_end = false, .cache = cache});
    EXPECT_EQ(generation.ids, greedy) << (cache ? "with" : "without") << " cache";
  }
}

// Sequences of unlike length, padded on either side, against each one alone.
TEST_P(FixtureModel, PaddedBatchGivesTheRowsOfItsSequencesAlone) {
  const std::vector<std::int32_t> all = ids_of(expected, "input_ids");
  const std::vector<std::int32_t> decoder = ids_of(expected, "decoder_input_ids");
  const std::int64_t lengths[] = {20, 12}, len = 20;
  for (const bool left : {false, true}) {
    ModelInput padded{.batch = 2, .ids = all, .mask = std::vector<std::int32_t>(40, 1), .decoder_ids = decoder};
    for (std::int64_t i = 0; i < len; ++i) {
      const std::int64_t from = left ? i - 8 : i;
      const bool real = from >= 0 && from < lengths[1];
      padded.mask[static_cast<std::size_t>(len + i)] = real;
      padded.ids[static_cast<std::size_t>(len + i)] = real ? all[static_cast<std::size_t>(len + from)] : 3;
    }
    Context context;
    const ModelResult together = model.forward(context, padded);
    const std::int64_t width = together.output->width();
    for (std::int64_t b = 0; b < 2; ++b) {
      ModelInput alone{.batch = 1};
      alone.ids.assign(all.begin() + b * len, all.begin() + b * len + lengths[b]);
      if (!decoder.empty()) alone.decoder_ids.assign(decoder.begin() + b * 9, decoder.begin() + (b + 1) * 9);
      const ModelResult single = model.forward(context, alone);
      const std::int64_t rows = decoder.empty() ? len : 9;
      const std::int64_t first = b * rows + (decoder.empty() && left ? len - lengths[b] : 0);
      const double scale = largest_magnitude(single.output->value());
      for (std::int64_t i = 0; i < single.output->value().elements(); ++i) {
        ASSERT_NEAR(together.output->data()[first * width + i], single.output->data()[i], 1e-5 * scale)
            << (left ? "left" : "right") << " padding, sequence " << b << ", element " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, FixtureModel,
                         ::testing::Values("albert", "bert", "bloom", "distilbert", "gemma2", "gemma3", "gpt2",
                                           "gpt_neox", "gpt_oss", "llama", "marian", "mixtral", "modernbert", "olmo2",
                                           "phi3", "qwen2", "roberta", "mistral", "qwen3", "t5"),
                         [](const auto& info) { return info.param; });

// A checkpoint may leave out its tables of sinusoidal positions: they are computed, and equal to the stored ones.
TEST(MarianPositions, ComputedTablesGiveWhatStoredOnesGive) {
  const test::TemporaryFolder folder;
  const SafetensorsFile weights = SafetensorsFile::open(folder_of("marian") / "model.safetensors");
  std::vector<NamedTensor> kept;
  for (const std::string& tensor : weights.names()) {
    if (tensor.find("embed_positions") == std::string::npos) kept.push_back({tensor, weights.tensor(tensor)});
  }
  ASSERT_EQ(kept.size() + 2, weights.names().size());
  write_safetensors(folder / "model.safetensors", kept);
  for (const char* file : {"config.json", "generation_config.json"}) {
    std::filesystem::copy_file(folder_of("marian") / file, folder / file);
  }
  const Transformer stored = load_model(folder_of("marian")), computed = load_model(folder.path());
  EXPECT_EQ(stored.config().stack.stored_positions, 64);
  EXPECT_EQ(computed.config().stack.stored_positions, 0);

  const SafetensorsFile expected = SafetensorsFile::open(folder_of("marian") / "expected.safetensors");
  const ModelInput input{.batch = 2,
                         .ids = ids_of(expected, "input_ids"),
                         .mask = {},
                         .decoder_ids = ids_of(expected, "decoder_input_ids")};
  Context context;
  const ModelResult from_stored = stored.forward(context, input), from_computed = computed.forward(context, input);
  const ConstTensorView output = from_stored.output->value();
  EXPECT_LT(largest_difference(output, from_computed.output->data()), 1e-5 * largest_magnitude(output));
}

}  // namespace
}  // namespace rootdk
