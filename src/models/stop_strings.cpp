#include "models/stop_strings.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace rootdk {

StopStrings::StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)) {
  for (const std::string& string : strings_) require(!string.empty(), "generate: a stop string is empty");
}

std::string StopStrings::push(std::string_view text) {
  if (stopped_) return {};
  held_ += text;
  std::size_t first = std::string::npos;
  for (const std::string& string : strings_) first = std::min(first, held_.find(string));
  if (first != std::string::npos) {
    stopped_ = true;
    held_.resize(first);
    return std::exchange(held_, {});
  }
  // The longest end of the text that begins one of the strings.
  std::size_t kept = 0;
  for (const std::string& string : strings_) {
    for (std::size_t length = std::min(string.size() - 1, held_.size()); length > kept; --length) {
      if (held_.ends_with(std::string_view(string).substr(0, length))) kept = length;
    }
  }
  std::string certain = held_.substr(0, held_.size() - kept);
  held_.erase(0, certain.size());
  return certain;
}

std::string StopStrings::finish() { return stopped_ ? std::string() : std::exchange(held_, {}); }

}  // namespace rootdk
