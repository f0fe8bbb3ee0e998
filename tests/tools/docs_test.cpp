// Checks the commands in the documentation: every option of a `rootdk VERB --option ...` is one of that verb.

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <regex>
#include <set>

#include "tools/command.h"

namespace rootdk {
namespace {

namespace fs = std::filesystem;

std::set<std::string> options_in(const std::string& text) {
  static const std::regex kOption("--[a-z][a-z-]*");
  std::set<std::string> options;
  for (std::sregex_iterator match(text.begin(), text.end(), kOption), end; match != end; ++match) {
    options.insert(match->str());
  }
  return options;
}

// What `rootdk VERB --help` lists; nothing where there is no such verb. A verb of two words is one of bench.
const std::set<std::string>& options_of(const std::string& verb) {
  static std::map<std::string, std::set<std::string>> known;
  const auto [place, is_new] = known.try_emplace(verb);
  if (is_new) {
    const std::size_t space = verb.find(' ');
    std::vector<std::string> arguments = {verb.substr(0, space), "--help"};
    if (space != std::string::npos) arguments.insert(arguments.begin() + 1, verb.substr(space + 1));
    const auto run = test::run_rootdk(arguments);
    if (run.exit_code == 0) place->second = options_in(run.out);
  }
  return place->second;
}

TEST(Docs, CommandsHaveTheOptionsThatPagesShow) {
  const fs::path root = ROOTDK_SOURCE_DIR;
  std::vector<fs::path> pages = {root / "README.md", root / "CONTRIBUTING.md"};
  for (const auto& entry : fs::recursive_directory_iterator(root / "docs")) {
    if (entry.path().extension() == ".md") pages.push_back(entry.path());
  }
  // Up to the end of a code span or of a table's cell. "forward|backward" names two verbs.
  static const std::regex kCommand("rootdk (bench )?([a-z|]+)([^`\\n|]*(\\|[a-z0-9]+[^`\\n|]*)*)");
  static const std::regex kVerb("[a-z]+");
  int checked = 0;
  for (const fs::path& page : pages) {
    std::ifstream file(page);
    for (std::string line; std::getline(file, line);) {
      for (std::sregex_iterator command(line.begin(), line.end(), kCommand), end; command != end; ++command) {
        const std::string verbs = (*command)[2], group = (*command)[1];
        for (const std::string& option : options_in((*command)[3])) {
          for (std::sregex_iterator verb(verbs.begin(), verbs.end(), kVerb); verb != end; ++verb) {
            EXPECT_TRUE(options_of(group + verb->str()).contains(option)) << page << ": " << line;
            ++checked;
          }
        }
      }
    }
  }
  EXPECT_GT(checked, 50);
}

}  // namespace
}  // namespace rootdk
