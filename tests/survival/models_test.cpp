// Models: loading, tokenizing, generating, training, inspecting, in C++ and through the C ABI.

#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lab/inspect/inspection.h"
#include "lab/inspect/json.h"
#include "lab/inspect/page.h"
#include "layers/stored_matrix.h"
#include "models/builtin.h"
#include "models/generate.h"
#include "models/loaded_model.h"
#include "models/train.h"
#include "rootdk/models_c_api.h"
#include "survival/c_status.h"
#include "survival/survive.h"

namespace rootdk::test {
namespace {

// These calls allocate thousands of times: later failures are sampled.
const SurvivalOptions kSampled{.one_by_one = 100, .growth = 0.2};

std::string fixture(const std::string& name) {
  return (std::filesystem::path(ROOTDK_TEST_DATA) / "models" / name).string();
}

Bits bits_of(const Transformer& model) {
  Bits bits;
  for (const Parameter& parameter : model.parameters()) {
    bits.add(parameter.name);
    const Node& node = *parameter.value;
    if (node.has_own_value()) {
      bits.add(node.value());
      continue;
    }
    Tensor row(DType::f32, {node.width()});
    for (std::int64_t i = 0; i < node.rows(); ++i) {
      widen_row(matrix_of(node), i, row.view().as<float>());
      bits.add(std::as_const(row));
    }
  }
  return bits;
}

Bits bits_of(const std::vector<std::int32_t>& ids) {
  Bits bits;
  for (const std::int32_t id : ids) bits.add(id);
  return bits;
}

TEST(SurvivesModels, Load) {
  for (const char* name : {"llama", "t5"}) {
    expect_survives(name, computes([&] { return bits_of(LoadedModel::load(fixture(name)).model); }), kSampled);
  }
}

TEST(SurvivesModels, Tokenizer) {
  const std::filesystem::path folder = builtin_model_folder();
  expect_survives("tokenizer", computes([&] {
                    const Tokenizer tokenizer = Tokenizer::load(folder);
                    Bits bits;
                    bits.add(tokenizer.vocab_size());
                    return bits;
                  }),
                  kSampled);
  const Tokenizer tokenizer = Tokenizer::load(folder);
  const std::vector<std::int32_t> ids = tokenizer.encode("ROMEO:\nWhat light?");
  expect_survives("encode", computes([&] { return bits_of(tokenizer.encode("ROMEO:\nWhat light?")); }), kSampled);
  expect_survives("decode", computes([&] {
                    Bits bits;
                    bits.add(tokenizer.decode(ids));
                    return bits;
                  }),
                  kSampled);
}

// A token at a time: one that could not be drawn comes with the next call.
class GeneratorSubject final : public Subject {
 public:
  GeneratorSubject(const LoadedModel& loaded, const GenerateParams& params, int before)
      : generator_(loaded.model, {3, 1, 4, 1, 5}, params) {
    for (int i = 0; i < before; ++i) generator_.next();
  }
  void call() override { generator_.next(); }
  Bits kept() const override { return bits_of(generator_.so_far().ids); }
  Bits result() const override { return kept(); }

 private:
  Generator generator_;
};

TEST(SurvivesModels, GeneratorNext) {
  for (const char* name : {"llama", "t5", "gpt_oss"}) {
    const LoadedModel loaded = LoadedModel::load(fixture(name));
    for (const bool greedy : {true, false}) {
      for (const int before : {0, 3}) {
        const GenerateParams params{.max_new = 8, .sampling = {.greedy = greedy, .top_p = 0.9}, .stop_at_end = false};
        expect_survives(
            std::string(name) + " next", [&] { return std::make_unique<GeneratorSubject>(loaded, params, before); },
            kSampled);
      }
    }
  }
}

TEST(SurvivesModels, Generate) {
  const LoadedModel loaded = LoadedModel::load(fixture("llama"));
  expect_survives("generate", computes([&] {
                    return bits_of(generate(loaded.model, {1, 2, 3}, {.max_new = 5}).ids);
                  }),
                  kSampled);
}

class TrainSubject final : public Subject {
 public:
  TrainSubject() : trainer_(settings(), text()) { trainer_.step(true); }
  void call() override { loss_ = trainer_.step(true).loss; }
  Bits kept() const override {
    Bits bits = bits_of(trainer_.model());
    bits.add(trainer_.steps_done());
    return bits;
  }
  Bits result() const override {
    Bits bits = kept();
    bits.add(loss_);
    return bits;
  }

 private:
  static TrainSettings settings() {
    TrainSettings settings;
    settings.model = {.d_model = 16, .layers = 2, .heads = 2, .context = 16};
    settings.batch = 2;
    settings.dropout = 0.1;
    settings.qk_clip = 0.5;
    settings.validation_share = 0;
    return settings;
  }
  static const char* text() {
    return "The quick brown fox jumps over the lazy dog. A wizard's job is to vex chumps.\n";
  }

  Trainer trainer_;
  double loss_ = 0;
};

TEST(SurvivesModels, TrainStep) {
  expect_survives(
      "train step", [] { return std::make_unique<TrainSubject>(); }, kSampled);
}

TEST(SurvivesModels, Inspect) {
  const LoadedModel loaded = LoadedModel::load(fixture("llama"));
  const std::vector<std::int32_t> ids = {1, 5, 2, 5, 2, 7, 5, 2, 9};
  expect_survives("inspect", computes([&] {
                    const lab::Inspection inspection = lab::inspect(loaded, ids, {.operand_numbers = 1 << 20});
                    Bits bits;
                    for (const lab::HeadProfile& head : inspection.heads) {
                      bits.add(head.label.score);
                      for (const float weight : head.map) bits.add(weight);
                    }
                    return bits;
                  }),
                  kSampled);
  const lab::Inspection inspection = lab::inspect(loaded, ids, {.operand_numbers = 1 << 20});
  expect_survives("inspection_json", computes([&] {
                    Bits bits;
                    bits.add(lab::inspection_json({&inspection, 1}));
                    return bits;
                  }),
                  kSampled);
  expect_survives("inspection_page", computes([&] {
                    Bits bits;
                    bits.add(lab::inspection_page({&inspection, 1}));
                    return bits;
                  }),
                  kSampled);
}

class Handle {
 public:
  explicit Handle(const std::string& folder) { check(rootdk_model_load(folder.c_str(), &model_)); }
  ~Handle() { rootdk_model_destroy(model_); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  operator const rootdk_model*() const { return model_; }

 private:
  rootdk_model* model_ = nullptr;
};

TEST(SurvivesModelsApi, Load) {
  const std::string folder = fixture("llama");
  expect_survives("rootdk_model_load", computes([&] {
                    const Handle model(folder);
                    rootdk_model_info info;
                    rootdk_model_info_init(&info);
                    check(rootdk_model_describe(model, &info));
                    Bits bits;
                    bits.add(info.parameters);
                    return bits;
                  }),
                  kSampled);
}

// The token and its text: neither is lost where there is no memory for the other.
class GenerationSubject final : public Subject {
 public:
  explicit GenerationSubject(const rootdk_model* model) {
    const int32_t prompt[] = {1, 2, 3};
    rootdk_generate_params params;
    rootdk_generate_params_init(&params);
    params.greedy = 0;
    check(rootdk_generation_begin(model, prompt, 3, &params, &generation_));
    call();
  }
  ~GenerationSubject() override { rootdk_generation_destroy(generation_); }

  void call() override {
    int32_t id = -2;
    const char* text = nullptr;
    size_t bytes = 0;
    check(rootdk_generation_next(generation_, &id, &text, &bytes));
    id_ = id;
    text_.assign(text, bytes);
  }
  Bits result() const override {
    Bits bits;
    bits.add(id_);
    bits.add(text_);
    return bits;
  }

 private:
  rootdk_generation* generation_ = nullptr;
  int32_t id_ = -1;
  std::string text_;
};

TEST(SurvivesModelsApi, GenerationNext) {
  const Handle model("builtin");
  expect_survives("rootdk_generation_next", [&] { return std::make_unique<GenerationSubject>(model); },
                  {.one_by_one = 60, .growth = 0.3});
}

TEST(SurvivesModelsApi, Inspection) {
  const Handle model(fixture("llama"));
  const int32_t ids[] = {1, 5, 2, 5, 2, 7};
  expect_survives("rootdk_model_inspect", computes([&] {
                    rootdk_inspection* made = nullptr;
                    check(rootdk_model_inspect(model, ids, 6, nullptr, &made));
                    const std::unique_ptr<rootdk_inspection, void (*)(rootdk_inspection*)> inspection(
                        made, rootdk_inspection_destroy);
                    const char* json = nullptr;
                    size_t bytes = 0;
                    check(rootdk_inspection_json(inspection.get(), &json, &bytes));
                    Bits bits;
                    bits.add(std::string_view(json, bytes));
                    return bits;
                  }),
                  kSampled);
}

}  // namespace
}  // namespace rootdk::test
