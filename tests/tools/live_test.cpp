// rootdk live, as users run it. tests/web opens the page in a browser.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tools/command.h"

namespace rootdk {
namespace {

using test::run_rootdk;
using testing::HasSubstr;
using testing::Not;

const std::string kModels = std::string(ROOTDK_TEST_DATA) + "/models/";

TEST(Live, WritesOneSmallPageThatNeedsNothingElse) {
  test::TemporaryFolder folder;
  const auto run = run_rootdk({"live", "--out", (folder / "page.html").string()});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("page.html"));
  EXPECT_EQ(folder.files().size(), 1U);
  const std::string page = test::file_content(folder / "page.html");
  EXPECT_LE(page.size(), 4'000'000U);
  EXPECT_THAT(page, HasSubstr("</html>"));
  for (const char* unfilled : {"{{style}}", "{{glue}}", "{{wasm}}", "{{model}}", "{{recorded}}", "{{modules}}"}) {
    EXPECT_THAT(page, Not(HasSubstr(unfilled)));
  }
  for (const char* outside : {"src=\"", "https://", "import {", "@import", "url(h"}) {
    EXPECT_THAT(page, Not(HasSubstr(outside)));
  }
}

TEST(Live, RefusesWhatThePageCannotShow) {
  test::TemporaryFolder folder;
  const std::string out = (folder / "page.html").string();
  auto run = run_rootdk({"live", kModels + "t5", "--out", out});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("has an encoder and a decoder"));
  run = run_rootdk({"live", kModels + "llama", "--out", out});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("has no tokenizer.json"));
  run = run_rootdk({"live", "--out", (folder / "no" / "page.html").string()});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_TRUE(folder.files().empty());
}

TEST(Live, RefusesACheckpointThatDoesNotFit) {
  test::TemporaryFolder folder;
  std::filesystem::copy(kModels + "llama", folder / "model");
  std::ofstream(folder / "model" / "tokenizer.json") << "{}";
  std::filesystem::resize_file(folder / "model" / "model.safetensors", std::uintmax_t{65} << 20);
  const auto run = run_rootdk({"live", (folder / "model").string(), "--out", (folder / "page.html").string()});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("a page holds at most 64"));
}

}  // namespace
}  // namespace rootdk
