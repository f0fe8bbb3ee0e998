// Checks the documentation against the code: links lead to files, folder pages name files that exist, results and
// logbook are dated and indexed, and the test values of docs/dropout.md are those of the code.

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

#include "rootdk/dropout.h"

namespace rootdk {
namespace {

namespace fs = std::filesystem;

const fs::path kRoot = ROOTDK_SOURCE_DIR;

std::vector<std::string> lines_of(const fs::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

std::vector<fs::path> pages() {
  std::vector<fs::path> result;
  for (const char* name : {"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"}) {
    result.push_back(kRoot / name);
  }
  for (const char* folder : {"docs", "src", "python", "tests"}) {
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / folder)) {
      if (entry.path().extension() == ".md") result.push_back(entry.path());
    }
  }
  return result;
}

// The pages of one folder but its index.
std::vector<fs::path> pages_in(const fs::path& folder) {
  std::vector<fs::path> result;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".md" && entry.path().filename() != "README.md") result.push_back(entry.path());
  }
  return result;
}

std::string text_of(const fs::path& path) {
  std::string text;
  for (const std::string& line : lines_of(path)) text += line + '\n';
  return text;
}

// The anchor that a heading gets: lower case, spaces to hyphens, punctuation gone.
std::string anchor_of(const std::string& heading) {
  std::string anchor;
  for (const char c : heading) {
    if (c == ' ') {
      anchor += '-';
    } else if (std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_') {
      anchor += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  return anchor;
}

bool has_anchor(const fs::path& page, const std::string& anchor) {
  for (const std::string& line : lines_of(page)) {
    const std::size_t text = line.find_first_not_of('#');
    if (text != 0 && text != std::string::npos && line[text] == ' ' && anchor_of(line.substr(text + 1)) == anchor) {
      return true;
    }
  }
  return false;
}

TEST(Docs, LinksLeadSomewhere) {
  static const std::regex kLink("\\]\\(([^)# ]*)(#([^) ]+))?\\)");
  int links = 0;
  for (const fs::path& page : pages()) {
    for (const std::string& line : lines_of(page)) {
      for (std::sregex_iterator match(line.begin(), line.end(), kLink), end; match != end; ++match) {
        const std::string target = (*match)[1], anchor = (*match)[3];
        if (target.starts_with("http")) continue;
        const fs::path file = target.empty() ? page : page.parent_path() / target;
        EXPECT_TRUE(fs::exists(file)) << page << " links to " << target;
        if (!anchor.empty() && fs::exists(file)) {
          EXPECT_TRUE(has_anchor(file, anchor)) << page << " links to " << target << "#" << anchor;
        }
        ++links;
      }
    }
  }
  EXPECT_GT(links, 50);
}

TEST(Docs, EveryPageIsInTheIndexOfItsFolder) {
  for (const char* folder : {"docs", "docs/results", "docs/logbook", "docs/decisions"}) {
    const std::string index = text_of(kRoot / folder / "README.md");
    for (const fs::path& page : pages_in(kRoot / folder)) {
      std::string link = "(";
      link.append(page.filename().string()).append(")");
      EXPECT_NE(index.find(link), std::string::npos) << page << " is not in the index";
    }
  }
}

// A result is worth little without its date, machine and command, and should be readable at a glance.
TEST(Docs, ResultsHaveDateMachineAndCommand) {
  static const std::regex kDate("\\| date \\| 20\\d\\d-\\d\\d-\\d\\d \\|");
  static const std::regex kCommand("`[^`]*(bench|make)[^`]*`");
  const std::vector<fs::path> results = pages_in(kRoot / "docs/results");
  EXPECT_GE(results.size(), 3u);
  for (const fs::path& page : results) {
    const std::string text = text_of(page);
    EXPECT_TRUE(std::regex_search(text, kDate)) << page;
    EXPECT_NE(text.find("\n| machine | "), std::string::npos) << page;
    EXPECT_TRUE(std::regex_search(text, kCommand)) << page;
    EXPECT_LE(lines_of(page).size(), 150u) << page << " is longer than two screens";
  }
}

TEST(Docs, LogbookEntriesAreDatedNewestFirst) {
  static const std::regex kEntry("## (20\\d\\d-\\d\\d-\\d\\d): .+");
  for (const fs::path& page : pages_in(kRoot / "docs/logbook")) {
    std::string before = "9999";
    for (const std::string& line : lines_of(page)) {
      if (!line.starts_with("## ")) continue;
      std::smatch match;
      ASSERT_TRUE(std::regex_match(line, match, kEntry)) << page << ": " << line;
      EXPECT_LE(match[1], before) << page << ": " << line;
      before = match[1];
    }
    EXPECT_NE(before, "9999") << page << " has no entry";
  }
}

TEST(Docs, TheGlossaryIsShort) {
  int words = 0;
  bool inside = false;
  for (const std::string& line : lines_of(kRoot / "ARCHITECTURE.md")) {
    if (line.starts_with("## ")) inside = line == "## Glossary";
    if (inside && line.starts_with("| ") && !line.starts_with("| word |") && !line.starts_with("| --- ")) ++words;
  }
  EXPECT_GE(words, 20);
  EXPECT_LE(words, 30);
}

// A page in src/ that names a file names one that is there: in its folder, or by its path from src/.
TEST(Docs, FolderPagesNameFilesThatExist) {
  static const std::regex kFile("`([A-Za-z0-9_./]+\\.(h|cpp|cuh|cu|py|sh))`");
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / "src")) {
    if (entry.path().filename() != "README.md") continue;
    const fs::path folder = entry.path().parent_path();
    const std::string text = text_of(entry.path());
    for (std::sregex_iterator match(text.begin(), text.end(), kFile), end; match != end; ++match) {
      const std::string name = (*match)[1];
      bool found = false;
      for (const fs::path& base : {folder, folder.parent_path(), kRoot / "src", kRoot}) {
        found = found || fs::exists(base / name);
      }
      EXPECT_TRUE(found) << entry.path() << " names " << name;
      ++files;
    }
  }
  EXPECT_GT(files, 50);
}

TEST(Docs, PhiloxValues) {
  static const std::regex kRow(
      "\\| `([0-9a-f]{8}) ([0-9a-f]{8}) ([0-9a-f]{8}) ([0-9a-f]{8})` \\| `([0-9a-f]{16})` \\| "
      "`([0-9a-f ]{35})` \\|");
  int rows = 0;
  for (const std::string& line : lines_of(kRoot / "docs/dropout.md")) {
    std::smatch match;
    if (!std::regex_match(line, match, kRow)) continue;
    PhiloxWords counter;
    for (std::size_t i = 0; i < 4; ++i) {
      counter[i] = static_cast<std::uint32_t>(std::stoul(match[static_cast<int>(i) + 1], nullptr, 16));
    }
    const PhiloxWords words = philox4x32_10(counter, std::stoull(match[5], nullptr, 16));
    char text[36];
    std::snprintf(text, sizeof text, "%08x %08x %08x %08x", words[0], words[1], words[2], words[3]);
    EXPECT_EQ(match[6], text);
    ++rows;
  }
  EXPECT_EQ(rows, 4);
}

TEST(Docs, DropoutRules) {
  static const std::regex kRow("\\| ([0-9.]+) \\| ([0-9]+) \\| ([0-9.]+) \\|");
  int rows = 0;
  for (const std::string& line : lines_of(kRoot / "docs/dropout.md")) {
    std::smatch match;
    if (!std::regex_match(line, match, kRow)) continue;
    const DropoutRule rule = DropoutRule::make(std::stod(match[1]), 42);
    EXPECT_EQ(rule.threshold, std::stoul(match[2]));
    EXPECT_EQ(rule.keep_scale, std::stof(match[3]));
    ++rows;
  }
  EXPECT_EQ(rows, 3);
}

TEST(Docs, DropoutBits) {
  static const std::regex kRow("\\| ([0-9.]+) \\| (\\d+) \\| (\\d+) \\| (\\d+) \\| (\\d+) \\| `([01]+)` \\|");
  int rows = 0;
  for (const std::string& line : lines_of(kRoot / "docs/dropout.md")) {
    std::smatch match;
    if (!std::regex_match(line, match, kRow)) continue;
    const DropoutRule rule = DropoutRule::make(std::stod(match[1]), 42);
    const auto number = [&](int group) { return static_cast<std::uint32_t>(std::stoul(match[group])); };
    const std::string expected = match[6];
    std::string kept;
    for (std::uint32_t j = 0; j < expected.size(); ++j) {
      kept += rule.keeps(number(2), number(3), number(4), number(5) + j) ? '1' : '0';
    }
    EXPECT_EQ(kept, expected);
    ++rows;
  }
  EXPECT_EQ(rows, 3);
}

}  // namespace
}  // namespace rootdk
