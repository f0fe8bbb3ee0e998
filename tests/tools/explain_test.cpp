#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "rootdk/version.h"
#include "tools/command.h"

namespace rootdk {
namespace {

using test::run_rootdk;
using testing::HasSubstr;

TEST(Explain, NamesTheChoiceAndTheOthers) {
  const auto run = run_rootdk({"explain", "--json", "--causal", "--q-len", "100"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto json = nlohmann::json::parse(run.out);
  EXPECT_EQ(json["q"], "f32 [1, 8, 100, 64]");
  bool chosen_is_first_that_accepts = false;
  for (const auto& candidate : json["candidates"]) {
    EXPECT_EQ(candidate["accepts"].get<bool>(), candidate["refusal"].get<std::string>().empty());
    if (!candidate["accepts"].get<bool>()) continue;
    chosen_is_first_that_accepts = candidate["name"] == json["chosen"];
    break;
  }
  EXPECT_TRUE(chosen_is_first_that_accepts);
}

TEST(Explain, AForcedTargetTurnsTheOthersDown) {
  const auto run = run_rootdk({"explain", "--target", "reference", "--dtype", "bf16", "--backward"});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(run.out, HasSubstr("attention_backward of q bf16"));
  EXPECT_THAT(run.out, HasSubstr("→ reference"));
}

TEST(Explain, EveryFeatureIsAsked) {
  const std::vector<std::vector<std::string>> calls = {
      {"--score", "cosine"},
      {"--score", "additive"},
      {"--softcap", "30", "--dropout", "0.1", "--sinks"},
      {"--window-left", "4", "--window-right", "0", "--kv-lengths"},
      {"--packed", "--alibi"},
      {"--mask", "--block-mask", "--bias", "--relative-table"},
      {"--stats", "--column-mass", "--pooled-map", "--weights"},
      {"--heads", "8", "--kv-heads", "2", "--kv-len", "77", "--value-dim", "32", "--batch", "3"},
      {"--q-len", "1000000"}};
  for (std::vector<std::string> call : calls) {
    call.insert(call.begin(), "explain");
    const auto run = run_rootdk(call);
    EXPECT_EQ(run.exit_code, 0) << call[1] << ": " << run.err;
  }
}

TEST(Explain, TakesTheCallFromAFile) {
  const auto run = run_rootdk({"explain", ROOTDK_TEST_DATA "/attention/001.safetensors", "--backward"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("q f32 [1, 2, 37, 128], k f32 [1, 1, 50, 128]"));
}

TEST(Explain, SaysWhatTheCallWouldSay) {
  const auto run = run_rootdk({"explain", "--heads", "12", "--kv-heads", "5"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("rootdk: attention: heads 12 is not a multiple of kv_heads 5"));
}

TEST(Explain, EnvironmentForcesATarget) {
  const auto run = run_rootdk({"explain", "--json"}, {}, {"ROOTDK_TARGET=reference"});
  EXPECT_EQ(nlohmann::json::parse(run.out)["chosen"], "reference");
}

TEST(Version, PrintsItself) {
  EXPECT_THAT(run_rootdk({"version"}).out, HasSubstr("rootdk " ROOTDK_VERSION_STRING));
  const auto json = nlohmann::json::parse(run_rootdk({"version", "--json"}).out);
  EXPECT_EQ(json["version"], ROOTDK_VERSION_STRING);
  EXPECT_THAT(json["implementations"].dump(), HasSubstr("reference"));
}

}  // namespace
}  // namespace rootdk
