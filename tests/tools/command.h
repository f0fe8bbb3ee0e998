#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace rootdk::test {

struct CommandResult {
  int exit_code = -1;  // -1: ended by a signal
  std::string out, err;
};

// Runs build/rootdk with these arguments, in `folder` where one is given; `environment` is added as NAME=VALUE.
CommandResult run_rootdk(std::vector<std::string> arguments, const std::filesystem::path& folder = {},
                         std::vector<std::string> environment = {});

// A folder of its own that is gone with the object.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  std::vector<std::string> files() const;

 private:
  std::filesystem::path path_;
};

std::string file_content(const std::filesystem::path& path);

}  // namespace rootdk::test
