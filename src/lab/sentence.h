#pragma once

// Numbers in sentences. A sentence of a finding is made from the numbers beside it, and tests/lab/sentences_test.cpp
// checks that they agree.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

namespace rootdk::lab {

// `digits` significant digits: 0.37, 22.6, 4.1e6, 1e-10.
inline std::string say(double value, int digits = 2) {
  if (!std::isfinite(value)) return std::isnan(value) ? "NaN" : "infinity";
  char text[48];
  std::snprintf(text, sizeof text, "%.*e", digits - 1, value);
  const std::string scientific = text;
  const std::size_t e = scientific.find('e');
  const int exponent = std::stoi(scientific.substr(e + 1));
  if (value != 0 && (exponent < -3 || exponent > 4)) {
    std::string mantissa = scientific.substr(0, e);
    if (mantissa.find('.') != std::string::npos) {
      mantissa.erase(mantissa.find_last_not_of('0') + 1);
      if (mantissa.back() == '.') mantissa.pop_back();
    }
    return mantissa + "e" + std::to_string(exponent);
  }
  std::snprintf(text, sizeof text, "%.*f", std::max(0, digits - 1 - exponent), std::stod(scientific));
  return text;
}

}  // namespace rootdk::lab
