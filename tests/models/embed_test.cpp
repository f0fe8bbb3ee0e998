// Texts as vectors: pooling, length 1, texts that are too long, and the same bits in any company.

#include "models/embed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>

#include "models/train_tokenizer.h"
#include "support/error_of.h"
#include "support/temporary_folder.h"

namespace rootdk {
namespace {

using test::error_of;
using ::testing::HasSubstr;

LoadedModel loaded(const std::string& name) {
  return {.name = name,
          .model = load_model(std::filesystem::path(ROOTDK_TEST_DATA) / "models" / name),
          .tokenizer = Tokenizer::parse(character_tokenizer_json("abcdefgh "), "tokenizer.json")};
}

TEST(Embed, PoolsTheHiddenStates) {
  for (const char* name : {"bert", "roberta", "distilbert", "albert", "modernbert"}) {
    const LoadedModel model = loaded(name);
    const std::string texts[] = {"abc", "hgfe dcba", "bad", "a"};
    const Tensor mean = embed_texts(model, texts), raw = embed_texts(model, texts, {.normalise = false});
    const Tensor first = embed_texts(model, texts, {.pooling = Pooling::first_token, .normalise = false});
    const std::int64_t width = model.model.config().d_model;
    for (std::int64_t i = 0; i < 4; ++i) {
      const std::vector<std::int32_t> ids = model.ids_of(texts[i]);
      Context context;
      const Value states = model.model.forward(context, {.ids = ids}).output;
      double square = 0;
      for (std::int64_t d = 0; d < width; ++d) {
        double sum = 0;
        for (std::size_t t = 0; t < ids.size(); ++t) sum += states->data()[static_cast<std::int64_t>(t) * width + d];
        const auto place = static_cast<std::size_t>(i * width + d);
        EXPECT_NEAR(raw.values<float>()[place], sum / static_cast<double>(ids.size()), 1e-6);
        EXPECT_EQ(first.values<float>()[place], states->data()[d]);
        square += std::pow(mean.values<float>()[place], 2);
      }
      EXPECT_NEAR(square, 1.0, 1e-5);
      const Tensor alone = embed_texts(model, {&texts[i], 1});
      EXPECT_EQ(std::memcmp(alone.view().data, mean.view().as<float>() + i * width, alone.bytes()), 0) << name;
    }
  }
}

TEST(Embed, CutsWhatIsTooLongAndRefusesDecoders) {
  const LoadedModel model = loaded("bert");
  std::string text(200, 'a');
  text[63] = 'b';  // behind the cut
  text[199] = 'c';
  std::string shorter = text.substr(0, 63) + 'c';
  std::int64_t truncated = 0;
  const Tensor cut = embed_texts(model, {&text, 1}, {}, &truncated), whole = embed_texts(model, {&shorter, 1});
  EXPECT_EQ(truncated, 1);
  EXPECT_EQ(std::memcmp(cut.view().data, whole.view().data, whole.bytes()), 0);
  EXPECT_THAT(error_of([] { embed_texts(loaded("llama"), {}); }), HasSubstr("gives logits"));
}

TEST(Embed, CutsTextsWhereItIsAsked) {
  const LoadedModel model = loaded("bert");
  const std::string text = "abcdefgh", shorter = "abch";
  std::int64_t truncated = 0;
  const Tensor cut = embed_texts(model, {&text, 1}, {.max_tokens = 4}, &truncated);
  const Tensor whole = embed_texts(model, {&shorter, 1});
  EXPECT_EQ(truncated, 1);
  EXPECT_EQ(std::memcmp(cut.view().data, whole.view().data, whole.bytes()), 0);
  EXPECT_EQ(longest_text(model, {.max_tokens = 1000}), model.model.config().max_position);
  EXPECT_THAT(error_of([&] { embed_texts(model, {&text, 1}, {.max_tokens = -1}); }), HasSubstr("max_tokens -1"));
}

TEST(Embed, ReadsHowLongATextMayBe) {
  const test::TemporaryFolder folder;
  EXPECT_EQ(stored_max_tokens(folder.path()), 0);
  folder.write("sentence_bert_config.json", R"({"max_seq_length": 256, "do_lower_case": false})");
  EXPECT_EQ(stored_max_tokens(folder.path()), 256);
  folder.write("sentence_bert_config.json", R"({"max_seq_length": 1})");
  EXPECT_THAT(error_of([&] { stored_max_tokens(folder.path()); }), HasSubstr("max_seq_length is 1"));
}

TEST(Embed, NamesTheTextThatIsNotUtf8) {
  const std::string texts[] = {"abc", "\xff"};
  EXPECT_THAT(error_of([&] { embed_texts(loaded("bert"), texts); }), HasSubstr("text 2 of 2: "));
}

TEST(Embed, ReadsHowAFolderPools) {
  const test::TemporaryFolder folder;
  EXPECT_EQ(stored_pooling(folder.path()), Pooling::mean);
  std::filesystem::create_directory(folder / "1_Pooling");
  auto write = [&](const std::string& text) { folder.write("1_Pooling/config.json", text); };
  write(R"({"word_embedding_dimension": 384, "pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false})");
  EXPECT_EQ(stored_pooling(folder.path()), Pooling::first_token);
  write(R"({"pooling_mode_max_tokens": true})");
  EXPECT_THAT(error_of([&] { stored_pooling(folder.path()); }), HasSubstr("pooling_mode_max_tokens is not supported"));
  write(R"({"pooling_mode_mean_tokens": true, "pooling_mode_max_tokens": true})");
  EXPECT_THAT(error_of([&] { stored_pooling(folder.path()); }), HasSubstr("pooling_mode_max_tokens is not supported"));
  write(R"({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true})");
  EXPECT_THAT(error_of([&] { stored_pooling(folder.path()); }), HasSubstr("are both true; supported: one of them"));
}

TEST(Embed, RefusesModulesBehindThePooling) {
  const test::TemporaryFolder folder;
  const std::string module = R"({"idx": 0, "type": "sentence_transformers.models.)";
  folder.write("modules.json", "[" + module + "Transformer\"}, " + module + "Pooling\"}, " + module + "Normalize\"}]");
  EXPECT_EQ(stored_pooling(folder.path()), Pooling::mean);
  folder.write("modules.json", "[" + module + "Transformer\"}, " + module + "Dense\"}]");
  EXPECT_THAT(error_of([&] { stored_pooling(folder.path()); }), HasSubstr("models.Dense is not supported"));
  folder.write("modules.json", "7");
  EXPECT_THAT(error_of([&] { stored_pooling(folder.path()); }), HasSubstr("is not a list"));
}

}  // namespace
}  // namespace rootdk
