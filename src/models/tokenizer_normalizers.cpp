// Normalizers of tokenizer.json, and sentencepiece's precompiled character map.

#include <cstring>

#include "models/text_budget.h"
#include "models/tokenizer_parts.h"
#include "models/unicode.h"

namespace rootdk {
namespace {

std::vector<std::uint8_t> decode_base64(const std::string& text, const std::string& where) {
  std::vector<std::uint8_t> bytes;
  std::uint32_t word = 0;
  int bits = 0;
  for (const char c : text) {
    if (c == '=') break;
    std::uint32_t value = 0;
    if (c >= 'A' && c <= 'Z') {
      value = static_cast<std::uint32_t>(c - 'A');
    } else if (c >= 'a' && c <= 'z') {
      value = static_cast<std::uint32_t>(c - 'a' + 26);
    } else if (c >= '0' && c <= '9') {
      value = static_cast<std::uint32_t>(c - '0' + 52);
    } else {
      require(c == '+' || c == '/', where, ": precompiled_charsmap is not base64");
      value = c == '+' ? 62 : 63;
    }
    word = (word << 6) | value;
    bits += 6;
    if (bits >= 8) bytes.push_back(static_cast<std::uint8_t>(word >> (bits -= 8)));
  }
  return bytes;
}

// A double-array trie of 32-bit units, then the replacements, each ended by a zero byte. A unit holds a label (bits 0
// to 7, bit 31 set on leaves), a leaf flag (bit 8) and the offset to its children (from bit 10, shifted by 8 more where
// bit 9 is set).
class CharacterMap {
 public:
  CharacterMap(const std::string& base64, const std::string& where) {
    const std::vector<std::uint8_t> bytes = decode_base64(base64, where);
    require(bytes.size() >= 4, where, ": precompiled_charsmap has ", bytes.size(), " bytes");
    std::uint32_t trie_bytes = 0;
    std::memcpy(&trie_bytes, bytes.data(), 4);
    require(trie_bytes % 4 == 0 && trie_bytes <= bytes.size() - 4, where, ": precompiled_charsmap's trie of ",
            trie_bytes, " bytes does not fit its ", bytes.size(), " bytes");
    units_.resize(trie_bytes / 4);
    if (trie_bytes) std::memcpy(units_.data(), bytes.data() + 4, trie_bytes);
    replacements_.assign(bytes.begin() + 4 + trie_bytes, bytes.end());
  }

  std::string apply(const std::string& text) const {
    std::string result;
    for (std::size_t i = 0; i < text.size();) {
      const auto [length, place] = longest_match(std::string_view(text).substr(i));
      if (length == 0) {
        const std::size_t size = unicode::length_from_first(text[i]);
        result += text.substr(i, size);
        i += size;
        continue;
      }
      for (std::size_t at = place; at < replacements_.size() && replacements_[at]; ++at) {
        result += static_cast<char>(replacements_[at]);
      }
      TextBudget::require_size(result.size());
      i += length;
    }
    return result;
  }

 private:
  static std::uint32_t offset(std::uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); }

  std::pair<std::size_t, std::size_t> longest_match(std::string_view text) const {
    std::pair<std::size_t, std::size_t> best{0, 0};
    if (units_.empty()) return best;
    std::size_t node = offset(units_[0]);
    for (std::size_t i = 0; i < text.size(); ++i) {
      const auto byte = static_cast<std::uint8_t>(text[i]);
      node ^= byte;
      if (node >= units_.size() || (units_[node] & 0x800000FFu) != byte) break;
      const std::uint32_t unit = units_[node];
      node ^= offset(unit);
      if ((unit >> 8) & 1u) {
        if (node >= units_.size()) break;
        best = {i + 1, units_[node] & 0x7FFFFFFFu};
      }
    }
    return best;
  }

  std::vector<std::uint32_t> units_;
  std::vector<std::uint8_t> replacements_;
};

// BERT: control characters out, any space a plain one, CJK characters set apart, accents off, lower case.
std::string bert_normalized(std::string text, bool clean, bool cjk, bool strip_accents, bool lowercase) {
  std::string result;
  for (const char32_t c : unicode::code_points(text)) {
    if (clean && (c == 0 || c == 0xFFFD || unicode::is_control(c))) continue;
    if (clean && unicode::is_space(c)) {
      result += ' ';
    } else if (cjk && unicode::is_cjk(c)) {
      result += ' ';
      unicode::append(result, c);
      result += ' ';
    } else {
      unicode::append(result, c);
    }
  }
  if (strip_accents) result = unicode::without_accents(result);
  return lowercase ? unicode::lower(result) : result;
}

std::string stripped(std::string text, bool left, bool right) {
  const std::vector<char32_t> points = unicode::code_points(text);
  std::size_t begin = 0, end = points.size();
  while (left && begin < end && unicode::is_space(points[begin])) ++begin;
  while (right && end > begin && unicode::is_space(points[end - 1])) --end;
  std::string result;
  for (std::size_t i = begin; i < end; ++i) unicode::append(result, points[i]);
  return result;
}

TextStep make_replace(const JsonFields& fields) {
  const std::string to = fields.text({"content"}, "");
  const Json* pattern = fields.find({"pattern"});
  require(pattern && pattern->is_object(), fields.where(), ": Replace needs a pattern");
  const JsonFields which(*pattern, fields.where());
  if (which.has("String")) {
    const std::string from = which.text({"String"}, "");
    require(!from.empty(), fields.where(), ": Replace of an empty string");
    return [from, to](std::string text) { return replace_all(std::move(text), from, to); };
  }
  const auto regex = std::make_shared<unicode::Regex>(which.text({"Regex"}, ""), fields.where());
  return [regex, to](std::string text) {
    std::string result;
    std::size_t done = 0;
    for (const auto& [begin, end] : regex->matches(text)) {
      result += text.substr(done, begin - done) + to;
      TextBudget::require_size(result.size());
      done = end;
    }
    return result + text.substr(done);
  };
}

}  // namespace

std::string replace_all(std::string text, std::string_view from, std::string_view to) {
  std::string result;
  std::size_t done = 0;
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, done)) {
    result.append(text, done, at - done).append(to);
    TextBudget::require_size(result.size());
    done = at + from.size();
  }
  return result.append(text, done);
}

void add_normalizers(const Json& object, const std::string& where, std::vector<TextStep>& into) {
  const JsonFields fields(object, where);
  const std::string type = fields.text({"type"}, "");
  auto form = [&](unicode::Form which) {
    into.push_back([which](std::string text) { return unicode::normalized(text, which); });
  };
  if (type == "Sequence") {
    const Json* list = fields.find({"normalizers"});
    require(list && list->is_array(), where, ": Sequence needs a list of normalizers");
    for (const Json& step : *list) add_normalizers(step, where, into);
  } else if (type == "NFC") {
    form(unicode::Form::nfc);
  } else if (type == "NFD") {
    form(unicode::Form::nfd);
  } else if (type == "NFKC") {
    form(unicode::Form::nfkc);
  } else if (type == "NFKD") {
    form(unicode::Form::nfkd);
  } else if (type == "Lowercase") {
    into.push_back([](std::string text) { return unicode::lower(text); });
  } else if (type == "StripAccents") {
    into.push_back([](std::string text) { return unicode::without_accents(text); });
  } else if (type == "Strip") {
    const bool left = fields.boolean({"strip_left"}, true), right = fields.boolean({"strip_right"}, true);
    into.push_back([left, right](std::string text) { return stripped(std::move(text), left, right); });
  } else if (type == "Prepend") {
    const std::string prepend = fields.text({"prepend"}, "");
    into.push_back([prepend](std::string text) { return text.empty() ? text : prepend + text; });
  } else if (type == "Replace") {
    into.push_back(make_replace(fields));
  } else if (type == "BertNormalizer") {
    const bool clean = fields.boolean({"clean_text"}, true), cjk = fields.boolean({"handle_chinese_chars"}, true);
    const bool lowercase = fields.boolean({"lowercase"}, true), accents = fields.boolean({"strip_accents"}, lowercase);
    into.push_back([=](std::string text) { return bert_normalized(std::move(text), clean, cjk, accents, lowercase); });
  } else if (type == "Precompiled") {
    const auto map = std::make_shared<CharacterMap>(fields.text({"precompiled_charsmap"}, ""), where);
    into.push_back([map](std::string text) { return map->apply(text); });
  } else {
    fail(where, ": normalizer \"", type,
         "\" is not supported; supported: Sequence, NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, Prepend, "
         "Replace, BertNormalizer, Precompiled");
  }
}

}  // namespace rootdk
