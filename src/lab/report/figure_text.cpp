#include "lab/report/figure_text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace rootdk::lab {

std::string tick_text(double value) {
  char text[32];
  const double size = std::abs(value);
  if (size >= 1e4 || (size > 0 && size < 1e-3)) {
    std::snprintf(text, sizeof text, "%.2e", value);  // such as 1.50e+06
    const std::string digits = text;
    const std::size_t e = digits.find('e');
    if (e == std::string::npos) return digits;  // an infinity
    std::snprintf(text, sizeof text, "%ge%d", std::stod(digits.substr(0, e)), std::stoi(digits.substr(e + 1)));
    return text;
  }
  std::snprintf(text, sizeof text, size >= 100 || value == std::round(value) ? "%.0f" : "%.3g", value);
  return text;
}

double text_width(const std::string& text, double per_character) {
  const auto characters = std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
  return static_cast<double>(characters) * per_character;
}

}  // namespace rootdk::lab
