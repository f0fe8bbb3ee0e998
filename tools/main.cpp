#include "rootdk/version.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <new>

#include "core/out_of_memory.h"
#include "tools/commands.h"

namespace {

enum ExitCode { kSuccess = 0, kFailure = 1, kUsage = 2 };

int report(const char* message, ExitCode code) {
  std::fflush(stdout);
  std::fprintf(stderr, "rootdk: %s\n", message);
  return code;
}

// Help and version requests arrive as exceptions too, with exit code 0.
int report_parse(const CLI::App& program, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return program.exit(error);
  // What was not understood says more than what is missing because of it.
  const std::vector<std::string> unknown = program.remaining(/*recurse=*/true);
  report(unknown.empty() ? error.what() : ("there is no '" + unknown.front() + "'").c_str(), kUsage);
  const CLI::App* verb = program.get_subcommands().empty() ? &program : program.get_subcommands().front();
  const std::string name = verb == &program ? "rootdk" : "rootdk " + verb->get_name();
  std::fprintf(stderr, "try '%s --help'\n", name.c_str());
  return kUsage;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App program("Scaled dot-product attention: exact, fused, and open to inspection.", "rootdk");
  program.set_version_flag("--version", "rootdk " ROOTDK_VERSION_STRING);
  program.require_subcommand(1);
  rootdk::tools::add_tour_command(program);
  rootdk::tools::add_lab_command(program);
  rootdk::tools::add_attend_command(program);
  rootdk::tools::add_explain_command(program);
  rootdk::tools::add_bench_command(program);
  rootdk::tools::add_forward_command(program);
  rootdk::tools::add_generate_command(program);
  rootdk::tools::add_train_command(program);
  rootdk::tools::add_inspect_command(program);
  rootdk::tools::add_live_command(program);
  rootdk::tools::add_version_command(program);
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return report_parse(program, error);
  } catch (const std::bad_alloc& error) {
    return report(rootdk::message_of(error), kFailure);
  } catch (const std::exception& error) {
    return report(error.what(), kFailure);
  }
  // A full disk shows only now.
  if (std::fflush(stdout) != 0 || std::ferror(stdout)) return report("cannot write to standard output", kFailure);
  return kSuccess;
}
