// rootdk generate, train and inspect, as users run them and as they mistype them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tools/command.h"

namespace rootdk {
namespace {

using nlohmann::json;
using test::run_rootdk;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

const std::string kModels = std::string(ROOTDK_TEST_DATA) + "/models/";

std::vector<int> new_ids(std::vector<std::string> options) {
  options.insert(options.begin(), {"generate", kModels + "llama", "--ids", "3,1,4", "--max-new", "12", "--json"});
  const auto run = run_rootdk(options);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  return json::parse(run.out)["new_ids"];
}

TEST(Generate, SamplesWhereASamplingOptionIsGiven) {
  EXPECT_EQ(new_ids({}), new_ids({"--greedy"}));
  EXPECT_NE(new_ids({}), new_ids({"--temperature", "1", "--seed", "3"}));
  EXPECT_EQ(new_ids({"--temperature", "1", "--seed", "3"}), new_ids({"--top-k", "0", "--seed", "3"}));
  EXPECT_NE(new_ids({"--temperature", "1", "--seed", "3"}), new_ids({"--temperature", "1", "--seed", "4"}));
}

TEST(Generate, RefusesWhatExcludesEachOther) {
  for (const std::vector<std::string>& options :
       {std::vector<std::string>{"--greedy", "--temperature", "1"}, {"--stop-at-end", "--ignore-end"}}) {
    std::vector<std::string> arguments = {"generate", kModels + "llama", "--ids", "1"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const auto run = run_rootdk(arguments);
    EXPECT_EQ(run.exit_code, 2);
    EXPECT_THAT(run.err, HasSubstr("excludes"));
  }
}

TEST(Generate, RefusesASeedBelowZero) {
  const auto run = run_rootdk({"generate", kModels + "llama", "--ids", "1", "--seed", "-1"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("--seed: -1 must not be negative"));
}

TEST(Generate, RefusesASeedBeyond64Bits) {
  const std::vector<std::string> common = {"generate", kModels + "llama", "--ids", "1", "--max-new", "1", "--seed"};
  for (const char* seed : {"18446744073709551616", "99999999999999999999999"}) {
    std::vector<std::string> arguments = common;
    arguments.emplace_back(seed);
    const auto run = run_rootdk(arguments);
    EXPECT_EQ(run.exit_code, 2) << seed;
    EXPECT_THAT(run.err, HasSubstr("is over 18446744073709551615, the largest seed"));
  }
  std::vector<std::string> largest = common;
  largest.emplace_back("18446744073709551615");
  EXPECT_EQ(run_rootdk(largest).exit_code, 0);
}

TEST(Generate, RefusesIdsThatAreMissingOrNoNumbers) {
  for (const char* ids : {"", ",", "1,,2", ",1", "1,"}) {
    const auto run = run_rootdk({"generate", kModels + "llama", "--ids", ids});
    EXPECT_EQ(run.exit_code, 2) << ids;
    EXPECT_THAT(run.err, HasSubstr("--ids: a number is missing")) << ids;
  }
  for (const char* entry : {"x", "2x", " 2", "1.5", "99999999999"}) {
    const auto run = run_rootdk({"generate", kModels + "llama", "--ids", std::string("1,") + entry});
    EXPECT_EQ(run.exit_code, 2) << entry;
    EXPECT_THAT(run.err, HasSubstr(std::string(entry) + "' is no number for it")) << entry;
  }
}

TEST(Generate, PrintsNothingBeforeAnError) {
  const auto run = run_rootdk({"generate", "builtin", "--prompt", "ROMEO", "--temperature", "-1"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.out, IsEmpty());
  EXPECT_THAT(run.err, HasSubstr("temperature -1 must be positive"));
}

TEST(Generate, RefusesAPromptPastTheLastPosition) {
  std::string ids = "1";
  for (int i = 1; i < 65; ++i) ids += ",1";
  const auto run = run_rootdk({"generate", kModels + "gpt2", "--ids", ids});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("the prompt has 65 tokens, but the model has 64 positions"));
}

TEST(Generate, TakesNoMemoryForTokensThatNeverCome) {
  const auto run =
      run_rootdk({"generate", kModels + "gpt2", "--ids", "1,2", "--max-new", "9000000000000000000", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(json::parse(run.out)["new_tokens"], 63);  // as far as its 64 positions reach
}

TEST(Train, FindsOutBeforeTrainingThatItCannotWrite) {
  test::TemporaryFolder folder;
  std::ofstream(folder / "text") << std::string(2000, 'a') + std::string(2000, 'b');
  const auto run = run_rootdk({"train", "--text", (folder / "text").string(), "--out", (folder / "text").string()});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("the folder cannot be made"));
  EXPECT_THAT(run.err, Not(HasSubstr("step ")));
}

TEST(Train, RefusesAVocabularyForTokensThatAreCharacters) {
  test::TemporaryFolder folder;
  std::ofstream(folder / "text") << std::string(2000, 'a') + std::string(2000, 'b');
  const auto run =
      run_rootdk({"train", "--text", (folder / "text").string(), "--out", (folder / "out").string(), "--vocab", "300"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("--vocab 300 is for the bpe tokenizer"));
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}

TEST(Train, SaysWhenNothingIsLeftToTrain) {
  test::TemporaryFolder folder;
  std::ofstream(folder / "text") << std::string(2000, 'a') + std::string(2000, 'b');
  std::vector<std::string> arguments = {"train", "--text", (folder / "text").string(), "--out",
                                        (folder / "out").string()};
  std::vector<std::string> sizes = {"--d-model", "8",         "--heads", "2",       "--layers",
                                    "1",         "--context", "8",       "--steps", "1"};
  std::vector<std::string> first = arguments, again = arguments;
  first.insert(first.end(), sizes.begin(), sizes.end());
  again.emplace_back("--resume");
  ASSERT_EQ(run_rootdk(first).exit_code, 0);
  const auto run = run_rootdk(again);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("no steps left to train: 1 of 1 are done"));
  // Nothing is overwritten, and nothing is ignored without a word.
  const auto anew = run_rootdk(first);
  EXPECT_EQ(anew.exit_code, 1);
  EXPECT_THAT(anew.err, HasSubstr("holds a training: --resume goes on with it"));
  again.insert(again.end(), {"--steps", "7", "--lr", "1"});
  EXPECT_THAT(run_rootdk(again).err,
              HasSubstr("not read, as a training goes on with the settings it began with: --steps --lr\n"));
}

std::vector<std::string> small_training(const test::TemporaryFolder& folder, const char* steps) {
  return {"train",
          "--text",
          (folder / "text").string(),
          "--out",
          (folder / "out").string(),
          "--heads",
          "2",
          "--d-model",
          "8",
          "--layers",
          "1",
          "--context",
          "8",
          "--steps",
          steps};
}

// The second is refused while the first has not saved anything yet.
TEST(Train, TwoIntoOneFolderAreRefusedFromTheFirstMoment) {
  test::TemporaryFolder folder;
  std::ofstream(folder / "text") << std::string(2000, 'a') + std::string(2000, 'b');
  std::filesystem::create_directories(folder / "out");
  const int held = ::open((folder / "out").c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(::flock(held, LOCK_EX | LOCK_NB), 0);  // as a training does that is at its first step
  const auto refused = run_rootdk(small_training(folder, "1"));
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("another process trains into this folder"));
  ::close(held);
  EXPECT_EQ(run_rootdk(small_training(folder, "1")).exit_code, 0);
}

TEST(Train, RemovesWhatAKilledTrainingLeft) {
  test::TemporaryFolder folder;
  std::ofstream(folder / "text") << std::string(2000, 'a') + std::string(2000, 'b');
  ASSERT_EQ(run_rootdk(small_training(folder, "2")).exit_code, 0);
  for (const char* name : {"training.safetensors.tmp-aB3dE6", "model.safetensors.tmp-000000", "notes.txt"}) {
    std::ofstream(folder / "out" / name) << "half";
  }
  auto again = small_training(folder, "2");
  again.emplace_back("--resume");
  ASSERT_EQ(run_rootdk(again).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(folder / "out" / "training.safetensors.tmp-aB3dE6"));
  EXPECT_FALSE(std::filesystem::exists(folder / "out" / "model.safetensors.tmp-000000"));
  EXPECT_TRUE(std::filesystem::exists(folder / "out" / "notes.txt"));
}

TEST(Train, SaysWhereThereIsNoRoomForValidation) {
  test::TemporaryFolder folder;
  std::ofstream(folder / "text") << "abcabcabcabcabcabcabc";
  const auto run = run_rootdk(small_training(folder, "1"));
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("no validation: the text's last part is shorter than a context"));
  EXPECT_THAT(run.out, Not(HasSubstr("nan")));
}

TEST(Train, LeavesNoFolderWhereItCannotBegin) {
  test::TemporaryFolder folder;
  std::ofstream(folder / "text") << "ab";
  EXPECT_EQ(run_rootdk(small_training(folder, "1")).exit_code, 1);
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}

TEST(Train, NamesADeviceThatIsNoText) {
  test::TemporaryFolder folder;
  for (const auto& arguments :
       {std::vector<std::string>{"train", "--text", "/dev/zero", "--out", (folder / "out").string()},
        {"inspect", kModels + "llama", "--text", "/dev/zero"}}) {
    const auto run = run_rootdk(arguments);
    EXPECT_EQ(run.exit_code, 1);
    EXPECT_THAT(run.err, HasSubstr("/dev/zero: is a device, not a text"));
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// A BLAS that is loaded though unused spins at the end for memory that is not there.
TEST(Version, EndsWhereMemoryIsShort) {
  const std::string command = std::string("ulimit -v 200000; ") + ROOTDK_BINARY + " version > /dev/null";
  EXPECT_EQ(std::system(("bash -c '" + command + "'").c_str()), 0);
}
#endif

TEST(Train, NamesAFolderThatIsNoText) {
  test::TemporaryFolder folder;
  const auto run = run_rootdk({"train", "--text", folder.path().string(), "--out", (folder / "out").string()});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("is a folder, not a text"));
}

TEST(Lab, FindsOutBeforeMeasuringThatItCannotWrite) {
  const auto run = run_rootdk({"lab", "--only", "3", "--report", "/nowhere/report.html"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.out, IsEmpty());
  EXPECT_THAT(run.err, HasSubstr("/nowhere/report.html"));
}

TEST(Lab, MeasuresAClaimOnce) {
  const auto run = run_rootdk({"lab", "--only", "3,3", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(json::parse(run.out).size(), 1U);
}

std::vector<json> json_lines(const std::string& text) {
  std::vector<json> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(json::parse(line));
  return lines;
}

TEST(Generate, ManyPromptsGiveWhatEachGivesAlone) {
  const test::TemporaryFolder folder;
  const std::string prompts = folder.write("prompts.jsonl",
                                           "{\"ids\": [3, 1, 4]}\n\n{\"ids\": [9], \"max_new\": 5, \"temperature\": 1, "
                                           "\"seed\": 3}\n{\"ids\": [2, 7, 1, 8], \"max_new\": 0}\n");
  const auto run = run_rootdk({"generate", kModels + "llama", "--prompts", prompts, "--max-new", "12", "--batch", "2"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  std::map<int, std::vector<int>> answers;
  for (const json& line : json_lines(run.out)) answers[line["index"]] = line["new_ids"].get<std::vector<int>>();
  EXPECT_EQ(answers.at(0), new_ids({}));
  EXPECT_EQ(answers.at(1).size(), 5u);
  EXPECT_EQ(answers.at(2), std::vector<int>());
  const auto stream = run_rootdk({"generate", kModels + "llama", "--prompts", prompts, "--max-new", "12", "--stream"});
  EXPECT_EQ(json_lines(stream.out).size(), 12u + 5u + 3u);
}

TEST(Generate, NamesTheLineOfABadPrompt) {
  const test::TemporaryFolder folder;
  for (const auto& [line, message] : {std::pair("{\"ids\": [1], \"wide\": 1}", "the field wide is unknown"),
                                      {"{\"ids\": [1]", "not valid JSON"},
                                      {"{\"ids\": [1], \"prompt\": \"x\"}", "give either prompt or ids"},
                                      {"{\"ids\": [1], \"max_new\": \"x\"}", "max_new must be a whole number"},
                                      {"{\"ids\": [1], \"max_new\": 18446744073709551615}", "max_new is too large"},
                                      {"{\"ids\": [1], \"seed\": -1}", "seed must be a whole number from 0"},
                                      {"{\"ids\": [4294967297]}", "ids has 4294967297, which is no token"},
                                      {"{\"ids\": 5}", "ids is 5, not a list of numbers"},
                                      {"{\"ids\": [1], \"stop\": \"x\"}", "stop strings need a tokenizer.json"},
                                      {"7", "neither a text nor an object"}}) {
    const std::string prompts = folder.write("prompts.jsonl", "{\"ids\": [1]}\n" + std::string(line) + "\n");
    const auto run = run_rootdk({"generate", kModels + "llama", "--prompts", prompts});
    EXPECT_EQ(run.exit_code, 1);
    EXPECT_THAT(run.err, HasSubstr("prompts.jsonl:2"));
    EXPECT_THAT(run.err, HasSubstr(message));
  }
}

TEST(Generate, RefusesPromptsThatAreNestedDeeply) {
  const test::TemporaryFolder folder;
  const std::size_t depth = 200000;
  const std::string prompts = folder.write("p.jsonl", std::string(depth, '[') + std::string(depth, ']') + "\n");
  const auto run = run_rootdk({"generate", kModels + "llama", "--prompts", prompts});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("p.jsonl:1: JSON nested deeper than"));
}

TEST(Generate, SaysOfEachPromptWherePositionsEndedItsText) {
  const test::TemporaryFolder folder;
  const std::string prompts =
      folder.write("p.jsonl", "{\"ids\": [1]}\n{\"ids\": [1], \"max_new\": 100}\n{\"ids\": [1]}\n");
  const auto run = run_rootdk({"generate", kModels + "gpt2", "--prompts", prompts, "--max-new", "3"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.err, testing::EndsWith("p.jsonl:2: ended after 64 of 100 tokens: the model has 64 positions\n"));
}

TEST(Generate, BeamsGiveTheTextThatPlainGenerationGives) {
  const std::vector<std::string> arguments = {"generate", "builtin", "--prompt", "ROMEO:", "--max-new", "6", "--json"};
  const auto plain = run_rootdk(arguments);
  std::vector<std::string> with_beams = arguments;
  with_beams.insert(with_beams.end(), {"--beams", "1"});
  const auto beams = run_rootdk(with_beams);
  ASSERT_EQ(plain.exit_code, 0) << plain.err;
  ASSERT_EQ(beams.exit_code, 0) << beams.err;
  ASSERT_EQ(json::parse(beams.out).size(), 1u);
  EXPECT_EQ(json::parse(beams.out)[0]["new_ids"], json::parse(plain.out)["new_ids"]);
  EXPECT_EQ(json::parse(beams.out)[0]["new_text"], json::parse(plain.out)["new_text"]);
}

TEST(Generate, RefusesNumbersBeyond64Bits) {
  for (const char* option : {"--max-new", "--top-k"}) {
    const auto run = run_rootdk({"generate", kModels + "llama", "--ids", "1", option, "99999999999999999999"});
    EXPECT_EQ(run.exit_code, 2) << option;
    EXPECT_THAT(run.err, HasSubstr("99999999999999999999 does not fit into 64 bits")) << option;
  }
}

TEST(Generate, TypesOfCacheAndWeightsDraftsAndBeams) {
  EXPECT_EQ(new_ids({"--cache", "f32"}), new_ids({"--no-cache"}));
  EXPECT_EQ(new_ids({"--cache", "int8"}).size(), 12u);
  EXPECT_EQ(new_ids({"--draft", kModels + "llama", "--draft-tokens", "3"}), new_ids({}));
  const auto beams =
      run_rootdk({"generate", kModels + "llama", "--ids", "3,1,4", "--max-new", "4", "--beams", "3", "--json"});
  ASSERT_EQ(beams.exit_code, 0) << beams.err;
  EXPECT_EQ(json::parse(beams.out).size(), 3u);
  const auto bad = run_rootdk({"generate", kModels + "llama", "--ids", "1", "--cache", "f64"});
  EXPECT_EQ(bad.exit_code, 2);
}

TEST(Quantize, ItsFolderGivesWhatQuantisingOnLoadGives) {
  const test::TemporaryFolder folder;
  for (const std::string weights : {"int8", "int4"}) {
    const std::string out = folder / weights;
    const auto run = run_rootdk({"quantize", kModels + "llama", "--out", out, "--weights", weights});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    const auto stored = run_rootdk({"generate", out, "--ids", "3,1,4", "--max-new", "12", "--json"});
    ASSERT_EQ(stored.exit_code, 0) << stored.err;
    EXPECT_EQ(json::parse(stored.out)["new_ids"].get<std::vector<int>>(), new_ids({"--weights", weights}));
    const auto again = run_rootdk({"generate", out, "--ids", "1", "--weights", weights});
    EXPECT_EQ(again.exit_code, 1);
    EXPECT_THAT(again.err, HasSubstr("is quantised already"));
  }
}

TEST(Quantize, KeepsWhatAnEncoderSaysAndOverwritesNothing) {
  namespace fs = std::filesystem;
  const test::TemporaryFolder folder;
  const std::string model = folder / "model", out = folder / "out";
  fs::copy(kModels + "bert", model, fs::copy_options::recursive);
  fs::create_directory(model + "/1_Pooling");
  folder.write("model/1_Pooling/config.json", R"({"pooling_mode_cls_token": true})");
  folder.write("model/sentence_bert_config.json", R"({"max_seq_length": 16})");
  ASSERT_EQ(run_rootdk({"quantize", model, "--out", out}).exit_code, 0);
  EXPECT_TRUE(fs::exists(out + "/1_Pooling/config.json") && fs::exists(out + "/sentence_bert_config.json"));
  const auto again = run_rootdk({"quantize", kModels + "llama", "--out", out});
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_THAT(again.err, HasSubstr("is there already and not an empty folder"));
}

// A process may write files of 100 kB at most: what a full disk does, too.
TEST(Quantize, LeavesNothingWhereItCannotWrite) {
  namespace fs = std::filesystem;
  const test::TemporaryFolder folder;
  const std::string model = folder / "model", made = folder / "made", found = folder / "found";
  fs::copy(kModels + "llama", model);
  fs::create_directory(found);
  const rlim_t limit = 100000;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);  // the write fails instead
  const rlimit small{.rlim_cur = limit, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto first = run_rootdk({"quantize", model, "--out", made});
  const auto second = run_rootdk({"quantize", model, "--out", found});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(first.exit_code, 1);
  EXPECT_THAT(first.err, HasSubstr("cannot write"));
  EXPECT_FALSE(fs::exists(made));
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_TRUE(fs::is_empty(found));
}

TEST(Generate, OptionsThatBeamsDoNotKnowAreRefused) {
  for (const std::string option : {"--stop", "--temperature", "--repetition-penalty"}) {
    const auto run = run_rootdk({"generate", kModels + "llama", "--ids", "3,1,4", "--beams", "3", option, "2"});
    EXPECT_EQ(run.exit_code, 2) << option;
    EXPECT_THAT(run.err, HasSubstr("excludes"));
  }
}

TEST(Generate, ErrorsOfPromptsNameTheLine) {
  const test::TemporaryFolder folder;
  const std::string prompts = folder.write("prompts.jsonl", "{\"ids\": [1]}\n{\"ids\": [1], \"max_new\": -1}\n");
  const auto run = run_rootdk({"generate", kModels + "llama", "--prompts", prompts});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("prompts.jsonl:2: generate: max_new -1"));
}

TEST(Embed, RefusesModelsThatGiveLogits) {
  const test::TemporaryFolder folder;
  const std::string text = folder.write("lines.txt", "ROMEO\nJULIET\n");
  const auto run = run_rootdk({"embed", "builtin", "--text", text});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("gives logits, not hidden states"));
}

}  // namespace
}  // namespace rootdk
