#include "rootdk/version.h"

#include <cstdio>
#include <exception>
#include <new>
#include <optional>

#include "core/out_of_memory.h"
#include "tools/arguments.h"
#include "tools/commands.h"

namespace {

enum ExitCode { kSuccess = 0, kFailure = 1 };  // 2: wrong usage

int report(const char* message, ExitCode code) {
  std::fflush(stdout);
  std::fprintf(stderr, "rootdk: %s\n", message);
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  rootdk::tools::Program program("rootdk",
                                 "Scaled dot-product attention: exact and fused, with statistics of its softmax.",
                                 "rootdk " ROOTDK_VERSION_STRING);
  rootdk::tools::Command& command = program.command();
  rootdk::tools::add_tour_command(command);
  rootdk::tools::add_lab_command(command);
  rootdk::tools::add_attention_command(command);
  rootdk::tools::add_explain_command(command);
  rootdk::tools::add_bench_command(command);
  rootdk::tools::add_plan_command(command);
  rootdk::tools::add_forward_command(command);
  rootdk::tools::add_generate_command(command);
  rootdk::tools::add_quantize_command(command);
  rootdk::tools::add_embed_command(command);
  rootdk::tools::add_train_command(command);
  rootdk::tools::add_inspect_command(command);
  rootdk::tools::add_live_command(command);
  rootdk::tools::add_version_command(command);
  try {
    if (const std::optional<int> status = program.run(argc, argv)) return *status;
  } catch (const std::bad_alloc& error) {
    return report(rootdk::message_of(error), kFailure);
  } catch (const std::exception& error) {
    return report(error.what(), kFailure);
  }
  // A full disk shows only now.
  if (std::fflush(stdout) != 0 || std::ferror(stdout)) return report("cannot write to standard output", kFailure);
  return kSuccess;
}
