#include "lab/report/html.h"

#include <cmath>
#include <cstdio>

namespace rootdk::lab {

std::string escape_html(std::string_view text) {
  std::string result;
  for (char c : text) {
    switch (c) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      default: result += c;
    }
  }
  return result;
}

std::string number(double value) {
  if (std::isnan(value)) return "–";
  if (std::isinf(value)) return value > 0 ? "∞" : "−∞";
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  std::string result = text;
  // 1.033e-10 reads as 1.033·10⁻¹⁰.
  const std::size_t e = result.find('e');
  if (e == std::string::npos) return result;
  const int exponent = std::stoi(result.substr(e + 1));
  return result.substr(0, e) + "·10<sup>" + std::to_string(exponent) + "</sup>";
}

}  // namespace rootdk::lab
