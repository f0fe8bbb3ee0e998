#pragma once

#include <string>
#include <string_view>

namespace rootdk::lab {

std::string escape_html(std::string_view text);

// A number as a reader wants it: four significant digits, no needless zeros, powers of ten where it is very large or
// small.
std::string number(double value);

}  // namespace rootdk::lab
