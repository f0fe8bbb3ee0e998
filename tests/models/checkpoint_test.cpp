// Config files in old and new spelling, and checkpoints that are sharded, in half precision, or broken.

#include "models/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "models/generate.h"
#include "models/quantised_checkpoint.h"
#include "models/tokenizer.h"
#include "rootdk/error.h"
#include "support/error_of.h"
#include "support/temporary_folder.h"

namespace rootdk {
namespace {

using Json = nlohmann::json;
using test::error_of;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

fs::path fixture(const std::string& name) { return fs::path(ROOTDK_TEST_DATA) / "models" / name; }

Json config_of(const std::string& name) {
  std::ifstream file(fixture(name) / "config.json");
  return Json::parse(file);
}

TransformerConfig parse(const Json& json) { return parse_config(json.dump(), "config.json"); }

class ModelFolder : public test::TemporaryFolder {
 public:
  void write_config(const Json& json) const { write("config.json", json.dump()); }
  std::string load_error() const {
    return error_of([&] { load_model(path()); });
  }
};

// The tensors of a fixture, written again after `change`.
void rewrite(const std::string& name, const fs::path& to,
             const std::function<void(std::vector<NamedTensor>&)>& change = {}) {
  const SafetensorsFile file = SafetensorsFile::open(fixture(name) / "model.safetensors");
  std::vector<NamedTensor> tensors;
  for (const std::string& tensor : file.names()) tensors.push_back({tensor, file.tensor(tensor)});
  if (change) change(tensors);
  write_safetensors(to, tensors);
}

std::vector<float> logits_of(const Transformer& model) {
  Context context;
  const ModelInput input{.ids = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}};
  const ModelResult result = model.forward(context, input);
  return {result.output->data(), result.output->data() + result.output->value().elements()};
}

TEST(Config, OlderSpellingsMeanTheSame) {
  Json json = config_of("llama");
  json.erase("rope_parameters");
  json["rope_theta"] = 500000.0;
  json["torch_dtype"] = "bfloat16";
  json["rope_scaling"] = {{"type", "linear"}, {"factor", 4.0}};
  TransformerConfig config = parse(json);
  EXPECT_EQ(config.rope.params.base, 500000.0);
  EXPECT_EQ(config.rope.params.scaling, RopeScaling::linear);
  json["rope_scaling"] = {{"rope_type", "llama3"},
                          {"factor", 8.0},
                          {"low_freq_factor", 1.0},
                          {"high_freq_factor", 4.0},
                          {"original_max_position_embeddings", 8192}};
  config = parse(json);
  EXPECT_EQ(config.rope.params.scaling, RopeScaling::llama3);
  EXPECT_EQ(config.rope.params.original_max_position, 8192);
  json["rope_scaling"] = {{"type", "dynamic"}, {"factor", 2.0}};
  config = parse(json);
  EXPECT_TRUE(config.rope.dynamic);
  EXPECT_EQ(config.rope.max_position, 64);
  json["rope_scaling"] = {{"type", "yarn"}, {"factor", 4.0}};
  EXPECT_NEAR(parse(json).rope.params.attention_factor, 0.1 * std::log(4.0) + 1.0, 1e-12);
  Json neox = config_of("gpt_neox");
  neox.erase("rope_parameters");
  neox["rotary_pct"] = 0.5;
  neox["rotary_emb_base"] = 1234;
  EXPECT_EQ(parse(neox).rope.params.rotary_dim, 8);
  EXPECT_EQ(parse(neox).rope.params.base, 1234.0);
}

TEST(Config, Gemma2CapsUnlessToldNotTo) {
  Json json = config_of("gemma2");
  json.erase("final_logit_softcapping");
  json["attn_logit_softcapping"] = nullptr;
  const TransformerConfig config = parse(json);
  EXPECT_EQ(config.head_softcap, 30.0);
  EXPECT_EQ(config.stack.blocks[0].attention.softcap, 0.0);
}

TEST(Config, WindowsAreAsUsualUnlessToldOtherwise) {
  const auto window_of = [](const Json& json) { return parse(json).stack.blocks[0].attention.window_left; };
  Json json = config_of("mistral");
  json["sliding_window"] = nullptr;
  EXPECT_EQ(window_of(json), -1);
  json.erase("sliding_window");
  EXPECT_EQ(window_of(json), 4095);
  json = config_of("gpt_oss");
  json.erase("sliding_window");
  EXPECT_EQ(window_of(json), 127);
}

TEST(Config, ErrorsNameTheFieldItsValueAndWhatIsSupported) {
  auto message = [](const char* name, const auto& change) {
    Json json = config_of(name);
    change(json);
    return error_of([&] { parse(json); });
  };
  EXPECT_THAT(message("llama", [](Json& j) { j["model_type"] = "mamba"; }),
              HasSubstr("model_type \"mamba\" is not supported; supported: gpt2, bert, llama"));
  EXPECT_THAT(message("llama", [](Json& j) { j["hidden_act"] = "mish"; }), HasSubstr("hidden_act \"mish\""));
  EXPECT_THAT(message("llama", [](Json& j) { j.erase("vocab_size"); }), HasSubstr("vocab_size is missing"));
  EXPECT_THAT(message("llama", [](Json& j) { j["hidden_size"] = "wide"; }), HasSubstr("hidden_size must be a whole"));
  EXPECT_THAT(message("llama", [](Json& j) { j["rms_norm_eps"] = -1e-6; }),
              HasSubstr("rms_norm_eps must not be negative, not -1e-06"));
  EXPECT_THAT(message("llama", [](Json& j) { j["hidden_size"] = -64; }), HasSubstr("hidden_size -64"));
  EXPECT_THAT(message("llama", [](Json& j) { j["num_key_value_heads"] = 3; }),
              HasSubstr("num_attention_heads 4 is not a multiple of num_key_value_heads 3"));
  EXPECT_THAT(message("gpt2", [](Json& j) { j["n_head"] = 5; }), HasSubstr("n_embd 48 is not a multiple of n_head 5"));
  EXPECT_THAT(message("llama", [](Json& j) { j["rope_parameters"]["rope_type"] = "longrope"; }),
              HasSubstr("rope_type \"longrope\" is not supported; supported: default, linear"));
  EXPECT_THAT(message("gemma2", [](Json& j) { j["layer_types"][0] = "recurrent"; }), HasSubstr("\"recurrent\""));
  EXPECT_THAT(message("gpt_oss",
                      [](Json& j) {
                        j["quantization_config"] = {{"quant_method", "mxfp4"}};
                      }),
              HasSubstr("mxfp4"));
  EXPECT_THAT(message("llama", [](Json& j) { j["num_hidden_layers"] = 2000000000; }), HasSubstr("2000000000"));
  EXPECT_THAT(error_of([] { parse_config("[1, 2]", "config.json"); }), HasSubstr("object is expected"));
  EXPECT_THAT(error_of([] { parse_config("{\"a\": \xFF}", "config.json"); }), HasSubstr("not valid JSON"));
}

TEST(Checkpoint, ShardsGiveTheSameModelAsOneFile) {
  const ModelFolder folder;
  folder.write_config(config_of("llama"));
  Json index = {{"metadata", Json::object()}, {"weight_map", Json::object()}};
  for (const int shard : {0, 1}) {
    const std::string file = "model-0000" + std::to_string(shard + 1) + "-of-00002.safetensors";
    rewrite("llama", folder / file, [&](std::vector<NamedTensor>& tensors) {
      std::vector<NamedTensor> kept;
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        if (static_cast<int>(i % 2) != shard) continue;
        index["weight_map"][tensors[i].name] = file;
        kept.push_back(tensors[i]);
      }
      tensors = kept;
    });
  }
  folder.write("model.safetensors.index.json", index.dump());
  EXPECT_EQ(logits_of(load_model(folder.path())), logits_of(load_model(fixture("llama"))));

  index["weight_map"]["model.norm.weight"] = "../llama/model.safetensors";
  folder.write("model.safetensors.index.json", index.dump());
  EXPECT_THAT(folder.load_error(), HasSubstr("must be a file in the same folder"));
  index["weight_map"]["model.norm.weight"] = "absent.safetensors";
  folder.write("model.safetensors.index.json", index.dump());
  EXPECT_THAT(folder.load_error(), HasSubstr("absent.safetensors"));
}

TEST(Checkpoint, HalfPrecisionWeights) {
  const std::vector<float> exact = logits_of(load_model(fixture("gpt2")));
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const ModelFolder folder;
    folder.write_config(config_of("gpt2"));
    std::vector<Tensor> kept;
    rewrite("gpt2", folder / "model.safetensors", [&](std::vector<NamedTensor>& tensors) {
      for (NamedTensor& tensor : tensors) {
        kept.push_back(convert(tensor.view, dtype));
        tensor.view = std::as_const(kept.back());
      }
    });
    const std::vector<float> rounded = logits_of(load_model(folder.path()));
    const double tolerance = dtype == DType::f16 ? 0.02 : 0.15;
    for (std::size_t i = 0; i < exact.size(); ++i) ASSERT_NEAR(rounded[i], exact[i], tolerance);
    EXPECT_NE(rounded, exact);
  }
}

TEST(Checkpoint, BareModelsWithoutPrefixAreFound) {
  const ModelFolder folder;
  folder.write_config(config_of("gpt2"));
  rewrite("gpt2", folder / "model.safetensors", [](std::vector<NamedTensor>& tensors) {
    for (NamedTensor& tensor : tensors) tensor.name.erase(0, std::string("transformer.").size());
  });
  EXPECT_EQ(logits_of(load_model(folder.path())), logits_of(load_model(fixture("gpt2"))));
}

TEST(Checkpoint, BrokenOnesAreRefusedBeforeAnythingIsRead) {
  const ModelFolder folder;
  EXPECT_THAT(folder.load_error(), HasSubstr("config.json"));
  folder.write_config(config_of("llama"));
  EXPECT_THAT(folder.load_error(), HasSubstr("neither model.safetensors nor"));
  rewrite("llama", folder / "model.safetensors",
          [](std::vector<NamedTensor>& tensors) { tensors.erase(tensors.begin()); });
  EXPECT_THAT(folder.load_error(), HasSubstr(" is missing; expected ["));
  rewrite("llama", folder / "model.safetensors");
  Json json = config_of("llama");
  json["intermediate_size"] = 2000000000;  // would be terabytes: refused by its shape
  folder.write_config(json);
  EXPECT_THAT(folder.load_error(), HasSubstr("has shape [64, 112], but the config asks for [64, 2000000000]"));
  folder.write_config(config_of("llama"));
  fs::resize_file(folder / "model.safetensors", fs::file_size(folder / "model.safetensors") - 100);
  EXPECT_NE(folder.load_error(), "no error");
  folder.write("model.safetensors", std::string("\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F{}", 10));
  EXPECT_NE(folder.load_error(), "no error");
  EXPECT_THAT(error_of([] { load_model("/nonexistent/model"); }), HasSubstr("not a folder"));
}

// A part of a model gives text that looks like a model's.
TEST(Checkpoint, FewerLayersThanTheFileHasAreRefused) {
  for (const auto& [name, field] :
       {std::pair{"llama", "num_hidden_layers"}, {"gpt2", "n_layer"}, {"t5", "num_layers"}}) {
    SCOPED_TRACE(name);
    const ModelFolder folder;
    fs::copy_file(fixture(name) / "model.safetensors", folder / "model.safetensors");
    Json json = config_of(name);
    const int layers = json[field];
    ASSERT_GT(layers, 1);
    json[field] = layers - 1;
    if (json.contains("layer_types")) json["layer_types"].erase(0);
    folder.write_config(json);
    EXPECT_THAT(folder.load_error(), HasSubstr("the config asks for " + std::to_string(layers - 1) +
                                               " layers, and the weights have " + std::to_string(layers)));
  }
  const test::TemporaryFolder folder;
  write_quantised(fixture("llama"), WeightFormat::i8, folder / "int8", nullptr);
  Json json = config_of("llama");
  json["num_hidden_layers"] = 1;
  std::ofstream(folder / "int8" / "config.json") << json.dump();
  EXPECT_THAT(error_of([&] { load_model(folder / "int8"); }), HasSubstr("asks for 1 layers, and the weights have 2"));
}

TEST(Checkpoint, InputsThatDoNotFitAreRefused) {
  const Transformer model = load_model(fixture("gpt2"));
  Context context;
  EXPECT_THAT(error_of([&] { model.forward(context, {.ids = {1, 2, 200}}); }), HasSubstr("id 200"));
  EXPECT_THAT(error_of([&] { model.forward(context, {.ids = std::vector<std::int32_t>(65, 1)}); }),
              HasSubstr("65 tokens pass the 64 positions"));
  EXPECT_THAT(error_of([&] { model.forward(context, {.batch = 2, .ids = {1, 2, 3}}); }), HasSubstr("batch of 2"));
  EXPECT_THAT(error_of([&] { model.forward(context, {.ids = {1, 2}, .mask = {1}}); }), HasSubstr("attention_mask"));
  EXPECT_THAT(error_of([] { generate(load_model(fixture("bert")), {1, 2}, {}); }), HasSubstr("hidden states"));
}

// A trained model from elsewhere, where ROOTDK_STORIES260K names its folder (with expected.json beside the weights).
TEST(Checkpoint, StoriesModelTellsItsStory) {
  const char* folder = std::getenv("ROOTDK_STORIES260K");
  if (!folder) GTEST_SKIP() << "ROOTDK_STORIES260K is not set";
  std::ifstream file(fs::path(folder) / "expected.json");
  const Json expected = Json::parse(file);
  const auto ids = expected["greedy_ids"].get<std::vector<std::int32_t>>();
  const Transformer model = load_model(folder);
  const Tokenizer tokenizer = Tokenizer::load(folder);
  const std::vector<std::int32_t> prompt = tokenizer.encode(expected["prompt"].get<std::string>());
  for (const bool cache : {true, false}) {
    const Generation generation =
        generate(model, prompt, {.max_new = static_cast<std::int64_t>(ids.size() - prompt.size()), .cache = cache});
    EXPECT_EQ(generation.ids, ids);
    EXPECT_THAT(expected["text"].get<std::string>(), HasSubstr(tokenizer.decode(generation.ids)));
  }
  EXPECT_EQ(tokenizer.encode("Once upon a time, there was a little girl"),
            std::vector<std::int32_t>(
                ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(
                                               tokenizer.encode("Once upon a time, there was a little girl").size())));
}

TEST(Generate, DynamicRopeGivesTheSameTokensWithACacheAndWithoutOne) {
  const ModelFolder folder;
  Json json = config_of("llama");
  json["max_position_embeddings"] = 8;
  json["rope_parameters"] = {{"rope_type", "dynamic"}, {"rope_theta", 10000.0}, {"factor", 2.0}};
  folder.write_config(json);
  rewrite("llama", folder / "model.safetensors");
  const Transformer model = load_model(folder.path());
  const std::vector<std::int32_t> prompt = {5, 9, 3, 20};
  const auto cached = generate(model, prompt, {.max_new = 30, .cache = true}).ids;
  EXPECT_EQ(cached, generate(model, prompt, {.max_new = 30, .cache = false}).ids);
  EXPECT_EQ(cached, generate(model, prompt, {.max_new = 30, .draft = &model}).ids);
  EXPECT_NE(cached, generate(load_model(fixture("llama")), prompt, {.max_new = 30}).ids);
}

TEST(Sampling, FollowsTemperatureTopKTopPAndSeed) {
  const std::vector<float> logits = {1.0f, 3.0f, 2.0f, -1.0f};
  EXPECT_EQ(sample(logits, {}, 0), 1);
  std::vector<int> counts(4);
  for (std::uint64_t step = 0; step < 20000; ++step)
    ++counts[static_cast<std::size_t>(sample(logits, {.greedy = false, .seed = 3}, step))];
  double sum = 0;
  for (const float x : logits) sum += std::exp(x);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(counts[i] / 20000.0, std::exp(logits[i]) / sum, 0.015);
  for (std::uint64_t step = 0; step < 200; ++step) {
    EXPECT_NE(sample(logits, {.greedy = false, .top_k = 2}, step), 0);
    EXPECT_EQ(sample(logits, {.greedy = false, .top_p = 0.5}, step), 1);
    EXPECT_EQ(sample(logits, {.greedy = false, .temperature = 0.01}, step), 1);
    EXPECT_EQ(sample(logits, {.greedy = false, .seed = 9}, step), sample(logits, {.greedy = false, .seed = 9}, step));
  }
}

TEST(Sampling, RefusesLogitsThatAreNotNumbers) {
  const float none = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  for (const bool greedy : {true, false}) {
    for (const float bad : {none, infinity}) {
      EXPECT_THROW(sample(std::vector<float>{1, bad, 2}, {.greedy = greedy}, 0), Error) << bad;
    }
    EXPECT_NE(sample(std::vector<float>{1, -infinity, 2}, {.greedy = greedy}, 0), 1);  // a token that cannot come
  }
}

}  // namespace
}  // namespace rootdk
