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
  std::string all = held_;  // what is held stays where there is no memory for more
  all += text;
  std::size_t first = std::string::npos;
  for (const std::string& string : strings_) first = std::min(first, all.find(string));
  if (first != std::string::npos) {
    stopped_ = true;
    held_.clear();
    all.resize(first);
    return all;
  }
  // The longest end of the text that begins one of the strings.
  std::size_t kept = 0;
  for (const std::string& string : strings_) {
    for (std::size_t length = std::min(string.size() - 1, all.size()); length > kept; --length) {
      if (all.ends_with(std::string_view(string).substr(0, length))) kept = length;
    }
  }
  std::string held = all.substr(all.size() - kept);
  all.resize(all.size() - kept);
  held_ = std::move(held);
  return all;
}

std::string StopStrings::finish() { return stopped_ ? std::string() : std::exchange(held_, {}); }

}  // namespace rootdk
