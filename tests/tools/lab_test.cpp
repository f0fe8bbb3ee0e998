// rootdk lab and rootdk inspect, as users run them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tools/command.h"

namespace rootdk {
namespace {

using nlohmann::json;
using test::run_rootdk;
using testing::HasSubstr;

const std::string kModels = std::string(ROOTDK_TEST_DATA) + "/models/";
const std::string kIds = "3,1,4,1,5,9,2,6,5,3,5,8";

TEST(Lab, PrintsFindingsAsJson) {
  test::TemporaryFolder folder;
  const auto run = run_rootdk({"lab", "--quick", "--only", "3,12", "--json", "--report", (folder / "r.html").string()});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json findings = json::parse(run.out);
  ASSERT_EQ(findings.size(), 2U);
  for (const char* field :
       {"id", "claim", "expected", "relation", "measured", "low", "high", "verdict", "note", "setup", "seconds"})
    EXPECT_TRUE(findings[0].contains(field)) << field;
  EXPECT_EQ(findings[0]["id"], 3);
  EXPECT_EQ(findings[0]["verdict"], "holds");
  EXPECT_THAT(test::file_content(folder / "r.html"), HasSubstr("id=\"claim-12\""));
}

TEST(Lab, NamesTheClaimsThereAre) {
  const auto run = run_rootdk({"lab", "--only", "28"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("there is no claim 28; there are 1 2 3"));
}

TEST(Inspect, PrintsEveryHeadAsJson) {
  const auto run = run_rootdk({"inspect", kModels + "llama", "--ids", kIds, "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json report = json::parse(run.out);
  EXPECT_EQ(report["token_count"], 12);
  ASSERT_FALSE(report["heads"].empty());
  for (const json& head : report["heads"]) {
    EXPECT_EQ(head["rows"], 12);
    EXPECT_EQ(head["column_mass"].size(), 12U);
    double mass = 0;
    for (const json& column : head["column_mass"]) mass += column.get<double>();
    EXPECT_NEAR(mass, 12, 1e-4);
    EXPECT_NEAR(head["sink_mass"].get<double>(), head["column_mass"][0].get<double>() / 12, 1e-6);
    EXPECT_NEAR(head["sink_chance"].get<double>(), head["column_chance"][0].get<double>() / 12, 1e-6);
    ASSERT_EQ(head["scores"].size(), 6U);
    for (const json& score : head["scores"]) {
      for (const char* field : {"label", "score", "chance", "rows", "tokens", "p_value", "significant"})
        EXPECT_TRUE(score.contains(field)) << field;
      if (score["label"] == head["label"]) {
        EXPECT_EQ(score["score"], head["strength"]);
        EXPECT_EQ(score["chance"], head["chance"]);
        EXPECT_EQ(score["rows"], head["label_rows"]);
        EXPECT_TRUE(score["significant"]);
      }
    }
  }
}

TEST(Inspect, WarnsBeyondTheTrainedContext) {
  std::string ids = "5";
  for (int i = 1; i < 140; ++i) ids.append(",").append(std::to_string(i % 90));
  const auto text = run_rootdk({"inspect", "builtin", "--ids", ids, "--layers", "0"});
  EXPECT_THAT(text.out, HasSubstr("warning: the text has 140 tokens, and the model was trained on 128 at a time"));
  const json report = json::parse(run_rootdk({"inspect", "builtin", "--ids", ids, "--layers", "0", "--json"}).out);
  EXPECT_EQ(report["trained_context"], 128);
  EXPECT_EQ(report["warnings"].size(), 1U);
  EXPECT_EQ(json::parse(run_rootdk({"inspect", "builtin", "--ids", kIds, "--json"}).out)["warnings"].size(), 0U);
}

// All heads of both models, though one has more.
TEST(Inspect, ComparesModelsOfDifferentSizes) {
  const auto run = run_rootdk({"inspect", kModels + "llama", "--ids", kIds, "--layers", "0", "--compare", "builtin"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto alone = run_rootdk({"inspect", "builtin", "--ids", kIds, "--layers", "0"});
  for (const char* head : {"0.0", "0.3"}) {
    EXPECT_THAT(run.out, HasSubstr(head));
    EXPECT_THAT(alone.out, HasSubstr(head));
  }
}

TEST(Inspect, SetsTwoCheckpointsSideBySide) {
  const auto run =
      run_rootdk({"inspect", kModels + "llama", "--ids", kIds, "--compare", kModels + "mistral", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json report = json::parse(run.out);
  EXPECT_EQ(report["a"]["architecture"], "llama");
  EXPECT_EQ(report["b"]["architecture"], "mistral");
  const auto text = run_rootdk({"inspect", kModels + "llama", "--ids", kIds, "--compare", kModels + "mistral"});
  EXPECT_THAT(text.out, HasSubstr("label B"));
}

TEST(Inspect, SaysWhatIsWrong) {
  EXPECT_THAT(run_rootdk({"inspect", kModels + "llama"}).err, HasSubstr("give one of --prompt, --text and --ids"));
  EXPECT_THAT(run_rootdk({"inspect", kModels + "llama", "--ids", kIds, "--layers", "9"}).err,
              HasSubstr("there is no layer 9"));
  EXPECT_THAT(run_rootdk({"inspect", kModels + "llama", "--prompt", "text"}).err, HasSubstr("tokenizer.json"));
}

}  // namespace
}  // namespace rootdk
