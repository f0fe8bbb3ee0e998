// Models through the C ABI: the same tokens, logits and profiles as the C++ rooms give, and a status with a message for
// every bad argument.

#include "rootdk/models_c_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "c_api/c_tensor.h"
#include "lab/inspect/inspection.h"
#include "models/beam.h"
#include "models/generate.h"
#include "models/loaded_model.h"

namespace rootdk {
namespace {

using testing::HasSubstr;

std::string fixture(const std::string& name) {
  return (std::filesystem::path(ROOTDK_TEST_DATA) / "models" / name).string();
}

class Handle {
 public:
  explicit Handle(const std::string& folder) {
    EXPECT_EQ(ROOTDK_OK, rootdk_model_load(folder.c_str(), &model_)) << rootdk_last_error();
  }
  ~Handle() { rootdk_model_destroy(model_); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  operator const rootdk_model*() const { return model_; }

 private:
  rootdk_model* model_ = nullptr;
};

rootdk_model_info describe_model(const rootdk_model* model) {
  rootdk_model_info info;
  rootdk_model_info_init(&info);
  EXPECT_EQ(ROOTDK_OK, rootdk_model_describe(model, &info)) << rootdk_last_error();
  return info;
}

std::vector<std::int32_t> encode(const rootdk_model* model, const std::string& text) {
  const int32_t* ids = nullptr;
  size_t count = 0;
  EXPECT_EQ(ROOTDK_OK, rootdk_model_encode(model, text.data(), text.size(), 1, &ids, &count)) << rootdk_last_error();
  return {ids, ids + count};
}

struct Generated {
  std::vector<std::int32_t> ids;
  std::string text;
};

Generated generate_all(const rootdk_model* model, const std::vector<std::int32_t>& prompt,
                       const rootdk_generate_params* params) {
  rootdk_generation* generation = nullptr;
  EXPECT_EQ(ROOTDK_OK, rootdk_generation_begin(model, prompt.data(), prompt.size(), params, &generation))
      << rootdk_last_error();
  Generated all;
  for (;;) {
    int32_t id = -2;
    const char* text = nullptr;
    size_t bytes = 0;
    EXPECT_EQ(ROOTDK_OK, rootdk_generation_next(generation, &id, &text, &bytes)) << rootdk_last_error();
    if (id < 0) break;
    all.ids.push_back(id);
    all.text.append(text, bytes);
  }
  rootdk_generation_destroy(generation);
  return all;
}

TEST(ModelsApi, DescribesTheBuiltinModel) {
  const Handle model("builtin");
  const LoadedModel expected = LoadedModel::load("builtin");
  const rootdk_model_info info = describe_model(model);
  EXPECT_STREQ("rootdk_lm", info.architecture);
  EXPECT_EQ(expected.model.parameter_count(), info.parameters);
  EXPECT_EQ(static_cast<std::int64_t>(expected.model.config().stack.blocks.size()), info.layers);
  EXPECT_EQ(expected.tokenizer->vocab_size(), info.vocab_size);
  EXPECT_EQ(info.vocab_size, info.output_width);
  EXPECT_TRUE(info.gives_logits && info.has_tokenizer && !info.has_encoder);
}

TEST(ModelsApi, EncodesAndDecodes) {
  const Handle model("builtin");
  const std::string text = "ROMEO:\nWhat light?";
  const std::vector<std::int32_t> ids = encode(model, text);
  EXPECT_EQ(LoadedModel::load("builtin").ids_of(text), ids);
  const char* back = nullptr;
  size_t bytes = 0;
  ASSERT_EQ(ROOTDK_OK, rootdk_model_decode(model, ids.data(), ids.size(), 0, &back, &bytes)) << rootdk_last_error();
  EXPECT_EQ(text, std::string(back, bytes));
}

TEST(ModelsApi, GeneratesWhatCppGenerates) {
  const Handle model("builtin");
  const LoadedModel subject = LoadedModel::load("builtin");
  const std::vector<std::int32_t> prompt = subject.ids_of("ROMEO:\n");
  for (const bool greedy : {true, false}) {
    rootdk_generate_params params;
    rootdk_generate_params_init(&params);
    params.max_new = 24;
    params.greedy = greedy;
    params.temperature = 0.8;
    params.top_k = 50;
    params.top_p = 0.9;
    params.seed = 5;
    const Generated all = generate_all(model, prompt, &params);
    const Generation expected = generate(
        subject.model, prompt,
        {.max_new = 24, .sampling = {.greedy = greedy, .temperature = 0.8, .top_k = 50, .top_p = 0.9, .seed = 5}});
    EXPECT_EQ(std::vector<std::int32_t>(expected.ids.end() - expected.new_tokens, expected.ids.end()), all.ids);
    EXPECT_EQ(subject.tokenizer->decode(expected.ids), "ROMEO:\n" + all.text);
  }
}

GenerateParams sampled_params() {
  return {.max_new = 24,
          .sampling = {.greedy = false, .temperature = 1.1, .min_p = 0.05, .repetition_penalty = 1.2, .seed = 5}};
}

rootdk_generate_params c_params(const GenerateParams& from) {
  rootdk_generate_params params;
  rootdk_generate_params_init(&params);
  params.max_new = from.max_new;
  params.greedy = from.sampling.greedy;
  params.temperature = from.sampling.temperature;
  params.min_p = from.sampling.min_p;
  params.repetition_penalty = from.sampling.repetition_penalty;
  params.seed = from.sampling.seed;
  return params;
}

// The model and the same with smaller weights: each is what C++ loads.
TEST(ModelsApi, LoadsSmallerWeightsAndSamplesAsCpp) {
  for (const int32_t weights : {ROOTDK_WEIGHTS_STORED, ROOTDK_WEIGHTS_INT8, ROOTDK_WEIGHTS_INT4}) {
    rootdk_load_params load;
    rootdk_load_params_init(&load);
    load.weights = weights;
    rootdk_model* model = nullptr;
    ASSERT_EQ(ROOTDK_OK, rootdk_model_load_with("builtin", &load, &model)) << rootdk_last_error();
    LoadOptions options;
    if (weights == ROOTDK_WEIGHTS_INT8) options.weights = WeightFormat::i8;
    if (weights == ROOTDK_WEIGHTS_INT4) options.weights = WeightFormat::i4;
    const LoadedModel same = LoadedModel::load("builtin", options);
    const std::vector<std::int32_t> prompt = encode(model, "ROMEO:");
    const rootdk_generate_params params = c_params(sampled_params());
    const std::vector<std::int32_t> expected = generate(same.model, prompt, sampled_params()).ids;
    const Generated found = generate_all(model, prompt, &params);
    EXPECT_TRUE(std::equal(found.ids.begin(), found.ids.end(), expected.begin() + static_cast<long>(prompt.size()),
                           expected.end()));
    rootdk_model_destroy(model);
  }
  rootdk_load_params bad;
  rootdk_load_params_init(&bad);
  bad.weights = 7;
  rootdk_model* none = nullptr;
  EXPECT_NE(ROOTDK_OK, rootdk_model_load_with("builtin", &bad, &none));
  EXPECT_THAT(rootdk_last_error(), HasSubstr("weights 7"));
  EXPECT_EQ(none, nullptr);
}

TEST(ModelsApi, StopStringsEndATextAndDraftsChangeNothing) {
  const Handle model("builtin");
  const std::vector<std::int32_t> prompt = encode(model, "ROMEO:");
  rootdk_generate_params params = c_params(sampled_params());
  const Generated whole = generate_all(model, prompt, &params);
  params.draft = model;
  params.draft_tokens = 3;
  params.cache_type = ROOTDK_F32;
  EXPECT_EQ(generate_all(model, prompt, &params).ids, whole.ids);

  params = c_params(sampled_params());
  const std::string end = whole.text.substr(whole.text.size() / 2, 5);
  const char* const stop[] = {"not in the text at all", end.c_str()};
  params.stop = stop;
  params.stop_count = 2;
  EXPECT_EQ(generate_all(model, prompt, &params).text, whole.text.substr(0, whole.text.find(end)));
  // What was held back comes with the end.
  const std::string begun = whole.text.substr(whole.text.size() - 3) + "and no more";
  const char* const never[] = {begun.c_str()};
  params.stop = never;
  params.stop_count = 1;
  rootdk_generation* generation = nullptr;
  ASSERT_EQ(ROOTDK_OK, rootdk_generation_begin(model, prompt.data(), prompt.size(), &params, &generation));
  std::string text;
  for (int32_t id = 0; id >= 0;) {
    const char* part = nullptr;
    size_t bytes = 0;
    ASSERT_EQ(ROOTDK_OK, rootdk_generation_next(generation, &id, &part, &bytes));
    text.append(part, bytes);
  }
  EXPECT_EQ(text, whole.text);
  rootdk_generation_destroy(generation);
}

TEST(ModelsApi, BatchesGiveWhatEachGivesAlone) {
  const Handle model("builtin");
  rootdk_batch* batch = nullptr;
  ASSERT_EQ(ROOTDK_OK, rootdk_batch_create(model, 2, ROOTDK_F32, 0, &batch)) << rootdk_last_error();
  rootdk_generate_params params = c_params(sampled_params());
  params.max_new = 9;
  std::vector<std::vector<std::int32_t>> prompts, found;
  for (const char* text : {"ROMEO:", "O, she doth teach", "What"}) {
    prompts.push_back(encode(model, text));
    size_t request = 99;
    ASSERT_EQ(ROOTDK_OK, rootdk_batch_add(batch, prompts.back().data(), prompts.back().size(), &params, &request));
    EXPECT_EQ(request, found.size());
    found.emplace_back();
  }
  for (size_t count = 1; count > 0;) {
    const rootdk_batch_token* tokens = nullptr;
    ASSERT_EQ(ROOTDK_OK, rootdk_batch_step(batch, &tokens, &count)) << rootdk_last_error();
    for (size_t i = 0; i < count; ++i) found.at(tokens[i].request).push_back(tokens[i].id);
  }
  params.cache_type = ROOTDK_F32;
  for (size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(found[i], generate_all(model, prompts[i], &params).ids);
  EXPECT_NE(ROOTDK_OK, rootdk_batch_add(batch, nullptr, 3, &params, nullptr));
  rootdk_batch_destroy(batch);
  EXPECT_NE(ROOTDK_OK, rootdk_batch_create(model, 0, -1, 0, &batch));
  EXPECT_THAT(rootdk_last_error(), HasSubstr("max_sequences 0"));
}

TEST(ModelsApi, BeamsAreThoseOfCpp) {
  const Handle model("builtin");
  const std::vector<std::int32_t> prompt = encode(model, "ROMEO:");
  const LoadedModel same = LoadedModel::load("builtin");
  const std::vector<BeamResult> expected = beam_search(same.model, prompt, {.beams = 3, .max_new = 8});
  rootdk_beam_params params;
  rootdk_beam_params_init(&params);
  params.beams = 3;
  params.max_new = 8;
  rootdk_beams* beams = nullptr;
  size_t count = 0;
  ASSERT_EQ(ROOTDK_OK, rootdk_beam_search(model, prompt.data(), prompt.size(), &params, &beams, &count));
  ASSERT_EQ(count, expected.size());
  for (size_t i = 0; i < count; ++i) {
    const int32_t* ids = nullptr;
    size_t length = 0;
    double total = 0, score = 0;
    ASSERT_EQ(ROOTDK_OK, rootdk_beams_get(beams, i, &ids, &length, &total, &score));
    EXPECT_EQ(std::vector(ids, ids + length),
              std::vector(expected[i].ids.end() - expected[i].new_tokens, expected[i].ids.end()));
    EXPECT_EQ(total, expected[i].log_probability);
    EXPECT_EQ(score, expected[i].score);
  }
  EXPECT_NE(ROOTDK_OK, rootdk_beams_get(beams, count, nullptr, nullptr, nullptr, nullptr));
  rootdk_beams_destroy(beams);
}

TEST(ModelsApi, AGenerationEndsForGood) {
  const Handle model(fixture("gpt2"));
  rootdk_generate_params params;
  rootdk_generate_params_init(&params);
  params.max_new = 2;
  const int32_t prompt[] = {1, 2, 3};
  rootdk_generation* generation = nullptr;
  ASSERT_EQ(ROOTDK_OK, rootdk_generation_begin(model, prompt, 3, &params, &generation)) << rootdk_last_error();
  int32_t id = -2;
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(ROOTDK_OK, rootdk_generation_next(generation, &id, nullptr, nullptr));
    EXPECT_EQ(i >= 2, id == -1);
  }
  rootdk_generation_destroy(generation);
}

TEST(ModelsApi, AnEncoderDecoderModelAnswers) {
  const Handle model(fixture("t5"));
  EXPECT_TRUE(describe_model(model).has_encoder);
  rootdk_generate_params params;
  rootdk_generate_params_init(&params);
  params.max_new = 6;
  params.stop_at_end = 0;
  const std::vector<std::int32_t> prompt = {3, 4, 5};
  const Generation expected =
      generate(LoadedModel::load(fixture("t5")).model, prompt, {.max_new = 6, .stop_at_end = false});
  EXPECT_EQ(std::vector<std::int32_t>(expected.ids.begin() + 1, expected.ids.end()),
            generate_all(model, prompt, &params).ids);
}

// Ids as i64 with a step of two between them, out with room between its rows: strides are followed.
TEST(ModelsApi, ForwardFollowsStrides) {
  const Handle model(fixture("gpt2"));
  const std::int64_t width = describe_model(model).output_width;
  Tensor ids(DType::i64, {2, 3, 2}), out(DType::f32, {2, 4, width});
  const std::vector<std::int32_t> tokens = {1, 5, 2, 7, 3, 3};
  for (std::size_t i = 0; i < tokens.size(); ++i) ids.values<std::int64_t>()[2 * i] = tokens[i];
  rootdk_tensor c_ids = c_tensor(ids), c_out = c_tensor(out);
  c_ids.rank = 2;
  c_ids.strides[0] = 6;
  c_ids.strides[1] = 2;
  c_out.shape[1] = 3;
  ASSERT_EQ(ROOTDK_OK, rootdk_model_forward(model, &c_ids, nullptr, nullptr, nullptr, &c_out, 1))
      << rootdk_last_error();
  Context context;
  const ModelResult expected = LoadedModel::load(fixture("gpt2")).model.forward(context, {.batch = 2, .ids = tokens});
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t i = 0; i < 4 * width; ++i) {
      const float value = out.values<float>()[static_cast<std::size_t>(b * 4 * width + i)];
      EXPECT_EQ(i < 3 * width ? expected.output->data()[b * 3 * width + i] : 0.0f, value);
    }
  }
}

TEST(ModelsApi, InspectsWhatCppInspects) {
  const Handle model("builtin");
  const std::vector<std::int32_t> ids = encode(model, "What light through yonder window breaks? What light?");
  rootdk_inspect_params params;
  rootdk_inspect_params_init(&params);
  const int64_t layers[] = {1};
  params.layers = layers;
  params.layer_count = 1;
  rootdk_inspection* inspection = nullptr;
  ASSERT_EQ(ROOTDK_OK, rootdk_model_inspect(model, ids.data(), ids.size(), &params, &inspection))
      << rootdk_last_error();
  const lab::Inspection expected = lab::inspect(LoadedModel::load("builtin"), ids, {.layers = {1}});
  const lab::HeadProfile& first = expected.heads[lab::sorted_by_label(expected)[0]];

  const float* values = nullptr;
  int64_t rows = 0, columns = 0;
  ASSERT_EQ(ROOTDK_OK, rootdk_inspection_map(inspection, 0, &values, &rows, &columns));
  EXPECT_EQ(first.map_rows, rows);
  EXPECT_EQ(first.map, std::vector<float>(values, values + rows * columns));
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_inspection_map(inspection, 99, &values, &rows, &columns));
  EXPECT_THAT(rootdk_last_error(), HasSubstr("there is no head 99"));

  const char* text = nullptr;
  size_t bytes = 0;
  ASSERT_EQ(ROOTDK_OK, rootdk_inspection_json(inspection, &text, &bytes));
  EXPECT_EQ(bytes, std::string(text).size());
  EXPECT_THAT(text, HasSubstr("\"architecture\": \"rootdk_lm\""));
  EXPECT_THAT(text, HasSubstr("\"layer\": 1"));
  EXPECT_THAT(text, testing::Not(HasSubstr("\"layer\": 0")));
  ASSERT_EQ(ROOTDK_OK, rootdk_inspection_page(inspection, &text, &bytes));
  EXPECT_THAT(std::string(text, bytes), HasSubstr("</html>"));
  rootdk_inspection_destroy(inspection);
}

TEST(ModelsApi, ThreadsShareAModel) {
  const Handle model("builtin");
  const std::vector<std::int32_t> prompt = encode(model, "JULIET:\n");
  std::vector<Generated> results(4);
  std::vector<std::thread> threads;
  for (Generated& result : results) threads.emplace_back([&] { result = generate_all(model, prompt, nullptr); });
  for (std::thread& thread : threads) thread.join();
  for (const Generated& result : results) EXPECT_EQ(results[0].text, result.text);
  EXPECT_EQ(64u, results[0].ids.size());
}

TEST(ModelsApiErrors, CarryTheMessage) {
  rootdk_model* none = nullptr;
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_model_load(nullptr, &none));
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_model_load("builtin", nullptr));
  EXPECT_EQ(ROOTDK_FILE_ERROR, rootdk_model_load("/nonexistent/model", &none));
  EXPECT_THAT(rootdk_last_error(), HasSubstr("/nonexistent/model"));
  EXPECT_EQ(nullptr, none);
  rootdk_model_destroy(none);  // null is no error
  rootdk_generation_destroy(nullptr);
  rootdk_inspection_destroy(nullptr);

  const Handle model(fixture("gpt2"));
  rootdk_model_info info{};
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_model_describe(model, &info));
  EXPECT_THAT(rootdk_last_error(), HasSubstr("rootdk_model_info has struct_size 0"));
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_model_describe(nullptr, &info));
  EXPECT_THAT(rootdk_last_error(), HasSubstr("the model is null"));
  const int32_t* ids = nullptr;
  size_t count = 0;
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_model_encode(model, "text", 4, 1, &ids, &count));
  EXPECT_THAT(rootdk_last_error(), HasSubstr("has no tokenizer.json"));

  rootdk_generation* generation = nullptr;
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_generation_begin(model, nullptr, 3, nullptr, &generation));
  EXPECT_THAT(rootdk_last_error(), HasSubstr("ids is null, count 3"));
  rootdk_generate_params params;
  rootdk_generate_params_init(&params);
  params.top_p = 2;
  const int32_t prompt[] = {1, 2, 3};
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_generation_begin(model, prompt, 3, &params, &generation));
  EXPECT_THAT(rootdk_last_error(), HasSubstr("top_p 2"));
  EXPECT_EQ(nullptr, generation);
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_generation_next(nullptr, nullptr, nullptr, nullptr));

  Tensor tokens(DType::i32, {1, 3}), out(DType::f32, {1, 2, 4});
  const rootdk_tensor c_tokens = c_tensor(tokens), c_out = c_tensor(out);
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_model_forward(model, nullptr, nullptr, nullptr, nullptr, &c_out, 0));
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_model_forward(model, &c_tokens, nullptr, nullptr, nullptr, &c_out, 0));
  EXPECT_THAT(rootdk_last_error(), HasSubstr("out is f32 [1, 2, 4], expected f32 [1, 3, "));
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_model_forward(model, &c_out, nullptr, nullptr, nullptr, &c_out, 0));
  EXPECT_EQ(ROOTDK_INVALID_ARGUMENT, rootdk_model_forward(model, &c_tokens, nullptr, nullptr, &c_tokens, &c_out, 0));
  EXPECT_THAT(rootdk_last_error(), HasSubstr("takes no decoder_ids"));
}

// Asked a few times a second: a call that has been under way for longer ends, and so does every later one.
TEST(Interrupts, EndACallAndTheGeneration) {
  const Handle model(fixture("llama"));
  const std::vector<std::int32_t> ids = {3, 1, 4};
  rootdk_generation* generation = nullptr;
  rootdk_on_interrupt([]() -> int32_t { return 1; });
  const rootdk_status begun = rootdk_generation_begin(model, ids.data(), ids.size(), nullptr, &generation);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  int32_t id = 0;
  const rootdk_status interrupted = rootdk_generation_next(generation, &id, nullptr, nullptr);
  const std::string message = rootdk_last_error();
  rootdk_on_interrupt(nullptr);
  const rootdk_status later = rootdk_generation_next(generation, &id, nullptr, nullptr);
  rootdk_generation_destroy(generation);
  EXPECT_EQ(begun, ROOTDK_OK);
  EXPECT_NE(interrupted, ROOTDK_OK);
  EXPECT_THAT(message, HasSubstr("interrupted"));
  EXPECT_NE(later, ROOTDK_OK);
}

}  // namespace
}  // namespace rootdk
