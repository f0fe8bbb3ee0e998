#include "models/builtin.h"

#include <gtest/gtest.h>

#include "models/checkpoint.h"
#include "models/tokenizer.h"

namespace rootdk {
namespace {

TEST(Builtin, IsSmallAndWhole) {
  const std::filesystem::path folder = builtin_model_folder();
  EXPECT_LE(std::filesystem::file_size(folder / "model.safetensors"), 2'000'000u);
  const Transformer model = load_model(folder);
  EXPECT_EQ(model.config().architecture, "rootdk_lm");
  EXPECT_EQ(model.config().vocab_size, Tokenizer::load(folder).vocab_size());
}

TEST(Builtin, ContinuesAPromptTheSameWayForTheSameSeed) {
  std::string streamed;
  const std::string text = builtin_continuation("ROMEO:\n", 40, 1, [&](std::string_view part) { streamed += part; });
  EXPECT_GT(text.size(), 20u);
  EXPECT_EQ(text, streamed);
  EXPECT_EQ(text, builtin_continuation("ROMEO:\n", 40, 1));
  EXPECT_NE(text, builtin_continuation("ROMEO:\n", 40, 2));
}

}  // namespace
}  // namespace rootdk
