#include "c_api/explained.h"

#include <cstdio>

namespace rootdk::c_api {
namespace {

void append_quoted(std::string& json, const std::string& text) {
  json += '"';
  for (char c : text) {
    if (c == '"' || c == '\\') {
      json += '\\';
      json += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", c);
      json += escape;
    } else {
      json += c;
    }
  }
  json += '"';
}

}  // namespace

std::string to_json(const Explanation& explanation) {
  std::string json = "{\"chosen\": ";
  append_quoted(json, explanation.chosen);
  json += ", \"error\": ";
  append_quoted(json, explanation.error);
  json += ", \"candidates\": [";
  for (std::size_t i = 0; i < explanation.candidates.size(); ++i) {
    json += i ? ", {\"name\": " : "{\"name\": ";
    append_quoted(json, explanation.candidates[i].name);
    json += ", \"refusal\": ";
    append_quoted(json, explanation.candidates[i].refusal);
    json += '}';
  }
  return json + "]}";
}

}  // namespace rootdk::c_api
