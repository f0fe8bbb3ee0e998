#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "support/temporary_folder.h"

namespace rootdk::test {

struct CommandResult {
  int exit_code = -1;  // -1: ended by a signal
  std::string out, err;
};

// Runs build/rootdk with these arguments, in `folder` where one is given; `environment` is added as NAME=VALUE.
CommandResult run_rootdk(std::vector<std::string> arguments, const std::filesystem::path& folder = {},
                         std::vector<std::string> environment = {});

std::string file_content(const std::filesystem::path& path);

}  // namespace rootdk::test
