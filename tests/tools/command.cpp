#include "tools/command.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace rootdk::test {
namespace {

namespace fs = std::filesystem;

// Only calls that are safe between fork and exec.
[[noreturn]] void become_rootdk(char* const* arguments, char* const* environment, const char* folder,
                                const char* out_path, const char* err_path) {
  const int out = ::open(out_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  const int err = ::open(err_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(err, STDERR_FILENO);
  if (*folder && ::chdir(folder) != 0) ::_exit(126);
  ::execve(ROOTDK_BINARY, arguments, environment);
  ::_exit(127);
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

}  // namespace

CommandResult run_rootdk(std::vector<std::string> arguments, const fs::path& folder,
                         std::vector<std::string> environment) {
  const TemporaryFolder captured;
  const std::string out_path = captured / "out", err_path = captured / "err";
  arguments.insert(arguments.begin(), "rootdk");
  for (char** entry = ::environ; *entry; ++entry) environment.emplace_back(*entry);
  const std::vector<char*> argv = pointers(arguments), envp = pointers(environment);
  const std::string folder_text = folder.string();
  const pid_t child = ::fork();
  if (child == 0) {
    become_rootdk(argv.data(), envp.data(), folder_text.c_str(), out_path.c_str(), err_path.c_str());
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) throw std::runtime_error("cannot run " ROOTDK_BINARY);
  return {.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1,
          .out = file_content(out_path),
          .err = file_content(err_path)};
}

std::string file_content(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace rootdk::test
