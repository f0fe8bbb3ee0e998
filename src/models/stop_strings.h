#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace rootdk {

// Ends a text at the first of some strings while it comes in parts. What could still become one of them is held back.
class StopStrings {
 public:
  // Throws rootdk::Error for an empty string, which every text has.
  explicit StopStrings(std::vector<std::string> strings);

  // The text that is certain now. Where a string is complete: the text before it, and stopped() from then on.
  std::string push(std::string_view text);
  // What was held back, at the end of a text that has not stopped.
  std::string finish();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> strings_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace rootdk
