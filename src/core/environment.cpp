#include "core/environment.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "core/check.h"
#include "core/immortal.h"

namespace rootdk {
namespace {

std::string_view variable(const char* name) {
  const char* text = std::getenv(name);
  return text ? text : "";
}

int parse_threads(std::string_view text) {
  if (text.empty()) return 0;
  int threads = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), threads);
  require(error == std::errc{} && end == text.data() + text.size() && threads >= 1 && threads <= 4096,
          "ROOTDK_THREADS: '", text, "' is not a number from 1 to 4096");
  return threads;
}

}  // namespace

const Environment& environment() {
  static const Environment& value = immortal([] {
    const std::string_view verbose = variable("ROOTDK_VERBOSE");
    return Environment{.target = std::string(variable("ROOTDK_TARGET")),
                       .verbose = !verbose.empty() && verbose != "0",
                       .threads = parse_threads(variable("ROOTDK_THREADS"))};
  }());
  return value;
}

}  // namespace rootdk
