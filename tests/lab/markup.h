#pragma once

// Looks at markup the way a parser would.

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace rootdk::lab {

// Every element is closed by its own name, in order.
inline void expect_well_formed(std::string_view markup) {
  std::vector<std::string> open;
  for (std::size_t at = markup.find('<'); at != std::string_view::npos; at = markup.find('<', at + 1)) {
    const std::size_t end = markup.find('>', at);
    ASSERT_NE(end, std::string_view::npos) << "an element does not end: " << markup.substr(at, 80);
    const std::string_view inside = markup.substr(at + 1, end - at - 1);
    if (inside.ends_with('/')) continue;
    const std::string name(inside.substr(0, inside.find(' ')));
    if (!name.starts_with('/')) {
      open.push_back(name);
      continue;
    }
    ASSERT_FALSE(open.empty()) << "</" << name.substr(1) << "> closes nothing";
    ASSERT_EQ(open.back(), name.substr(1));
    open.pop_back();
  }
  EXPECT_TRUE(open.empty()) << "<" << open.back() << "> is never closed";
}

inline int count(std::string_view text, std::string_view part) {
  int found = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + part.size())) ++found;
  return found;
}

}  // namespace rootdk::lab
