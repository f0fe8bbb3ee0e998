#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "tools/command.h"

namespace rootdk {
namespace {

using test::run_rootdk;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::size_t code_points(const std::string& line) {
  std::size_t count = 0;
  for (const char c : line) count += (static_cast<unsigned char>(c) & 0xc0u) != 0x80u;
  return count;
}

TEST(Tour, WalksThroughEverySection) {
  const auto run = run_rootdk({"tour"}, {}, {"LC_ALL=C.UTF-8"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  for (const char* section : {"1  Words", "2  Why √d_k", "3  What happened", "4  What a query", "5  The same numbers",
                              "6  A model", "7  Where to go next"}) {
    EXPECT_THAT(run.out, HasSubstr(section));
  }
  EXPECT_THAT(run.out, Not(HasSubstr("\x1b"))) << "no colour where the output is not a terminal";
  EXPECT_FALSE(std::regex_search(run.out, std::regex("\\bnan\\b")));
  std::istringstream lines(run.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(code_points(line), 80u) << line;
}

// A terminal that takes no UTF-8 gets the same tour in ASCII, and no line is longer for it.
TEST(Tour, SpeaksAsciiWhereTheLocaleDoes) {
  const auto run = run_rootdk({"tour", "sentence", "scale", "statistics", "masks", "next"}, {}, {"LC_ALL=C"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("2  Why sqrt(d_k)"), HasSubstr("sum p^2"), HasSubstr("#")));
  std::istringstream lines(run.out);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 80u) << line;
    for (const char c : line) EXPECT_LT(static_cast<unsigned char>(c), 0x80) << line;
  }
}

// The sentence is made so that 'it' means the cat; every row of weights sums to 1.
TEST(Tour, SentenceAddsUp) {
  const auto run = run_rootdk({"tour", "sentence"}, {}, {"LC_ALL=C.UTF-8"});
  EXPECT_THAT(run.out, AllOf(HasSubstr("animal 0."), Not(HasSubstr("Why √d_k"))));
  const std::regex row("(1\\.000|0\\.999|1\\.001) +[0-9.]+ keys");
  EXPECT_EQ(std::distance(std::sregex_iterator(run.out.begin(), run.out.end(), row), {}), 10);
}

// d_k = 1024 without the scale: nearly one-hot; with it, the same softmax as any d_k.
TEST(Tour, ScaleShowsSaturation) {
  const std::string out = run_rootdk({"tour", "scale"}, {}, {"LC_ALL=C.UTF-8"}).out;
  std::smatch match;
  const std::regex row("1024 +([0-9.]+) +([0-9.]+) [^0-9]*([0-9.]+)  │ +([0-9.]+) +([0-9.]+) [^0-9]*([0-9.]+)");
  ASSERT_TRUE(std::regex_search(out, match, row)) << out;
  EXPECT_LT(std::stod(match[1]), 2.0);
  EXPECT_LT(std::stod(match[3]), 0.2);
  EXPECT_GT(std::stod(match[4]), 100.0);
  EXPECT_GT(std::stod(match[6]), 0.95);
}

TEST(Tour, TellsTheHeadsApart) {
  const std::string out = run_rootdk({"tour", "statistics"}).out;
  EXPECT_THAT(out,
              AllOf(HasSubstr("broad      spreads over"), HasSubstr("local      attends to a small"),
                    HasSubstr("sink       most weight rests on key 0"), HasSubstr("saturated  nearly one-hot rows")));
}

// In a folder where everybody may write, a link may wait under any name that can be foreseen.
TEST(Tour, ReportFollowsNoLink) {
  const test::TemporaryFolder folder;
  const std::string victim = (folder / "victim").string();
  std::ofstream(victim) << "precious";
  std::filesystem::create_symlink(victim, folder / "rootdk-report.html");
  const auto run = run_rootdk({"tour", "next"}, {}, {"TMPDIR=" + folder.path().string()});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(test::file_content(victim), "precious");
  std::smatch match;
  ASSERT_TRUE(std::regex_search(run.out, match, std::regex("browser:\\s+(.*rootdk-report-.*[.]html)"))) << run.out;
  EXPECT_THAT(test::file_content(match[1].str()), HasSubstr("<html"));
}

TEST(Tour, SaysThatThereIsNoFolderForTheReport) {
  const auto run = run_rootdk({"tour", "next"}, {}, {"TMPDIR=/nonexistent"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("The report could not be written: the folder for temporary files (TMPDIR): "));
}

TEST(Tour, UnknownSectionIsAUsageError) {
  const auto run = run_rootdk({"tour", "gift-shop"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("gift-shop not in"));
}

}  // namespace
}  // namespace rootdk
