// The pages say what is so: links lead to files, and the test values of docs/dropout.md are those of the code.

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
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / "docs")) {
    if (entry.path().extension() == ".md") result.push_back(entry.path());
  }
  return result;
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
