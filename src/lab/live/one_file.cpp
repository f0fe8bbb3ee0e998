#include "lab/live/one_file.h"

#include <algorithm>
#include <cstdint>

#include "core/check.h"

namespace rootdk::lab {

std::string base64(std::string_view bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t word = 0;
    for (std::size_t j = 0; j < 3; ++j) {
      word = word << 8 | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0u);
    }
    for (std::size_t j = 0; j < 4; ++j) text += i + j <= bytes.size() ? kDigits[word >> (18 - 6 * j) & 63] : '=';
  }
  return text;
}

std::string joined_modules(std::string_view modules) {
  std::string script;
  script.reserve(modules.size());
  while (!modules.empty()) {
    std::string_view line = modules.substr(0, std::min(modules.find('\n'), modules.size() - 1) + 1);
    modules.remove_prefix(line.size());
    if (line.starts_with("import {")) continue;
    if (line.starts_with("export ")) line.remove_prefix(7);
    script.append(line);
  }
  return script;
}

std::string inside_script(std::string text) {
  for (std::size_t at = 0; (at = text.find("</", at)) != std::string::npos; at += 3) text.replace(at, 2, "<\\/");
  return text;
}

std::string json_inside_script(std::string_view json) {
  std::string safe;
  safe.reserve(json.size());
  for (const char c : json) {  // JSON has "<" inside texts alone
    if (c == '<') {
      safe += "\\u003c";
    } else {
      safe += c;
    }
  }
  return safe;
}

std::string filled(std::string_view pattern, const std::map<std::string_view, std::string>& parts) {
  std::string page;
  while (true) {
    const std::size_t open = pattern.find("{{"), close = pattern.find("}}", open);
    if (open == std::string_view::npos) return page.append(pattern);
    const auto part = parts.find(pattern.substr(open + 2, close - open - 2));
    require(part != parts.end(), "internal: a page asks for ", pattern.substr(open, close + 2 - open));
    page.append(pattern.substr(0, open)).append(part->second);
    pattern.remove_prefix(close + 2);
  }
}

}  // namespace rootdk::lab
