#include "tools/terminal.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace rootdk::tools {

Style Style::of_stdout() {
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  const bool refused = (no_color && *no_color) || !term || std::string_view(term) == "dumb";
  return Style(!refused && ::isatty(STDOUT_FILENO) == 1);
}

std::string Style::wrap(std::string_view code, std::string_view text) const {
  if (!colour_) return std::string(text);
  std::string result = "\x1b[";
  return result.append(code).append("m").append(text).append("\x1b[0m");
}

bool terminal_has_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (!value || !*value) continue;
    std::string lower(value);
    std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return lower.find("utf-8") != std::string::npos || lower.find("utf8") != std::string::npos;
  }
  return true;
}

std::string for_terminal(std::string_view text) {
  static const bool utf8 = terminal_has_utf8();
  if (utf8) return std::string(text);
  static constexpr std::pair<std::string_view, std::string_view> kPlain[] = {{"√d_k", "sqrt(d_k)"},
                                                                             {"√d", "sqrt(d)"},
                                                                             {"√", "sqrt "},
                                                                             {"Σ", "sum "},
                                                                             {"ᵀ", "^T"},
                                                                             {"²", "^2"},
                                                                             {"·", "."},
                                                                             {"×", "x"},
                                                                             {"…", "..."},
                                                                             {"│", "|"},
                                                                             {"─", "-"},
                                                                             {"░", ":"},
                                                                             {"▒", "+"},
                                                                             {"▓", "%"},
                                                                             {"█", "#"},
                                                                             {"▏", "-"},
                                                                             {"▎", "-"},
                                                                             {"▍", "-"},
                                                                             {"▌", "="},
                                                                             {"▋", "="},
                                                                             {"▊", "="},
                                                                             {"▉", "="}};
  std::string plain;
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view rest = text.substr(at);
    const auto known = std::ranges::find_if(kPlain, [&](const auto& pair) { return rest.starts_with(pair.first); });
    if (known != std::end(kPlain)) {
      plain += known->second;
      at += known->first.size();
    } else if (static_cast<unsigned char>(rest[0]) < 0x80) {
      plain += rest[0];
      ++at;
    } else {  // one mark for all the bytes of a character
      plain += '?';
      do ++at;
      while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0u) == 0x80u);
    }
  }
  return plain;
}

std::size_t display_width(std::string_view text) {
  std::size_t width = 0;
  bool in_escape = false;
  for (const char c : text) {
    if (c == '\x1b') in_escape = true;
    const bool continues_code_point = (static_cast<unsigned char>(c) & 0xc0u) == 0x80u;
    if (!in_escape && !continues_code_point) ++width;
    if (in_escape && c == 'm') in_escape = false;
  }
  return width;
}

std::string pad_right(std::string_view text, std::size_t width) {
  const std::size_t used = display_width(text);
  return std::string(text) + std::string(width > used ? width - used : 0, ' ');
}

std::string pad_left(std::string_view text, std::size_t width) {
  const std::size_t used = display_width(text);
  return std::string(width > used ? width - used : 0, ' ') + std::string(text);
}

std::string format(const char* pattern, ...) {
  std::va_list arguments, again;
  va_start(arguments, pattern);
  va_copy(again, arguments);
  const int length = std::vsnprintf(nullptr, 0, pattern, arguments);
  va_end(arguments);
  std::string text(static_cast<std::size_t>(std::max(length, 0)), '\0');
  std::vsnprintf(text.data(), text.size() + 1, pattern, again);
  va_end(again);
  return text;
}

void Table::add(std::vector<std::string> cells) {
  for (std::string& cell : cells) cell = for_terminal(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::text(std::string_view indent) const {
  std::vector<std::size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], display_width(row[i]));
  }
  std::string result;
  for (const auto& row : rows_) {
    std::string line(indent);
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (i) line += "  ";
      line += i < left_ ? pad_right(row[i], widths[i]) : pad_left(row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    result += line + "\n";
  }
  return result;
}

std::string shade(double weight, std::size_t width) {
  static constexpr const char* kShades[] = {" ", "░", "▒", "▓", "█"};
  // Anything that shows at all begins at 2.5 %; the steps are even above it.
  const auto level = static_cast<std::size_t>(std::clamp(std::floor(weight * 4.0 + 0.9), 0.0, 4.0));
  std::string result;
  for (std::size_t i = 0; i < width; ++i) result += kShades[level];
  return result;
}

std::string bar(double share, std::size_t width) {
  static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const auto eighths =
      static_cast<std::size_t>(std::lround(std::clamp(share, 0.0, 1.0) * 8.0 * static_cast<double>(width)));
  std::string result;
  for (std::size_t i = 0; i < eighths / 8; ++i) result += "█";
  return result + kEighths[eighths % 8];
}

}  // namespace rootdk::tools
