#include "rootdk/version.h"

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "rootdk/attention.h"
#include "tools/arguments.h"
#include "tools/commands.h"

namespace rootdk::tools {
namespace {

constexpr const char* compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "gcc " __VERSION__;
#endif
}

// Every implementation of this build, in the order in which they are asked: the answer to any call names them all.
std::vector<std::string> implementations() {
  float x = 0, y = 0;
  const TensorView one(&x, {1, 1, 1, 1}), out(&y, {1, 1, 1, 1});
  std::vector<std::string> names;
  for (const auto& candidate : explain(one, one, one, out).candidates) names.push_back(candidate.name);
  return names;
}

void print_version(bool json) {
  const std::vector<std::string> names = implementations();
  if (json) {
    const nlohmann::ordered_json result = {
        {"version", ROOTDK_VERSION_STRING}, {"compiler", compiler()}, {"implementations", names}};
    std::puts(result.dump(2).c_str());
    return;
  }
  std::printf("rootdk %s\ncompiler: %s\nimplementations:", ROOTDK_VERSION_STRING, compiler());
  for (const std::string& name : names) std::printf(" %s", name.c_str());
  std::puts("");
}

}  // namespace

void add_version_command(Command& program) {
  Command* verb = program.add_subcommand("version", "Print the version and what this build can run");
  auto json = std::make_shared<bool>(false);
  verb->add_flag("--json", *json, "Print JSON");
  verb->callback([json] { print_version(*json); });
}

}  // namespace rootdk::tools
