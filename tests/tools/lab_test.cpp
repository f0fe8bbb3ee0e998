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
  for (const char* field : {"id", "claim", "expected", "relation", "measured", "low", "high", "verdict", "note", "seconds"})
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
