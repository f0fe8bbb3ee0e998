// Unicode where ICU is not (WebAssembly): the JavaScript engine around us has the tables, in String.normalize and in
// regular expressions with character classes.

#include <emscripten.h>

#include <cstdlib>

#include "core/check.h"
#include "models/unicode.h"

// The scripts below have no backslash: emscripten 3.1 loses them. clang-format does not know JavaScript.
// clang-format off

// Texts come back as [length, bytes...] in memory that the caller frees.
EM_JS(std::uint8_t*, rootdk_host_map, (const char* text, int size, int what), {
  let string = new TextDecoder('utf-8', {ignoreBOM: true}).decode(HEAPU8.slice(text, text + size));
  if (what < 4) string = string.normalize(['NFC', 'NFD', 'NFKC', 'NFKD'][what]);
  if (what === 4) {
    // One character becomes one character, as ICU's simple mapping has it.
    string = [...string].map(c => { const l = c.toLowerCase(); return [...l].length === 1 ? l : c; }).join(String());
  }
  if (what === 5) string = string.normalize('NFD').replace(new RegExp(String.fromCharCode(92) + 'p{Mn}', 'gu'), String());
  const bytes = new TextEncoder().encode(string);
  const out = _malloc(bytes.length + 4);
  HEAP32[out >> 2] = bytes.length;
  HEAPU8.set(bytes, out + 4);
  return out;
});

EM_JS(int, rootdk_host_is, (int c, int what), {
  if (!Module.rootdkClasses) {
    const p = String.fromCharCode(92) + 'p';
    const kinds = ['{White_Space}', '{Cc}' + p + '{Cf}' + p + '{Co}' + p + '{Cs}' + p + '{Cn}', '{P}', '{N}'];
    Module.rootdkClasses = kinds.map(kind => new RegExp('^[' + p + kind + ']$', 'u'));
  }
  return Module.rootdkClasses[what].test(String.fromCodePoint(c)) ? 1 : 0;
});

// The number of the compiled expression, or -1.
EM_JS(int, rootdk_host_compile, (const char* pattern, int size), {
  const all = Module.rootdkExpressions || (Module.rootdkExpressions = []);
  try {
    all.push(new RegExp(new TextDecoder().decode(HEAPU8.slice(pattern, pattern + size)), 'gu'));
  } catch (error) {
    return -1;
  }
  return all.length - 1;
});

// [count, begin, end, begin, end, ...] in UTF-16 units.
EM_JS(std::int32_t*, rootdk_host_match, (int expression, const char* text, int size), {
  const string = new TextDecoder('utf-8', {ignoreBOM: true}).decode(HEAPU8.slice(text, text + size));
  const found = [];
  for (const match of string.matchAll(Module.rootdkExpressions[expression])) {
    found.push(match.index, match.index + match[0].length);
  }
  const out = _malloc(4 * (found.length + 1));
  HEAP32[out >> 2] = found.length / 2;
  HEAP32.set(found, (out >> 2) + 1);
  return out;
});

// clang-format on

namespace rootdk::unicode {
namespace {

constexpr char32_t kReplacement = 0xFFFD;

// The character at `at`, which moves behind it; behind the longest valid beginning, and `bad`, where there is none.
char32_t next(std::string_view text, std::size_t& at, bool& bad) {
  auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(at++);
  bad = false;
  if (first < 0x80) return first;
  const int more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
  bad = true;
  if (first < 0xC2 || first > 0xF4) return kReplacement;
  char32_t c = first & (0x3Fu >> more);
  for (int i = 0; i < more; ++i) {
    if (at >= text.size()) return kReplacement;
    const unsigned b = byte(at);
    // The second byte rules out overlong forms, surrogates and what lies beyond U+10FFFF.
    const unsigned low = i == 0 && first == 0xE0 ? 0xA0 : i == 0 && first == 0xF0 ? 0x90 : 0x80;
    const unsigned high = i == 0 && first == 0xED ? 0x9F : i == 0 && first == 0xF4 ? 0x8F : 0xBF;
    if (b < low || b > high) return kReplacement;
    c = c << 6 | (b & 0x3Fu);
    ++at;
  }
  bad = false;
  return c;
}

std::string mapped(std::string_view text, int what) {
  std::uint8_t* memory = rootdk_host_map(text.data(), static_cast<int>(text.size()), what);
  std::int32_t size = 0;
  __builtin_memcpy(&size, memory, sizeof size);
  std::string result(reinterpret_cast<const char*>(memory) + 4, static_cast<std::size_t>(size));
  std::free(memory);
  return result;
}

bool is_class(char32_t c, int what) { return rootdk_host_is(static_cast<int>(c), what) != 0; }

}  // namespace

std::size_t find_invalid(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t start = at;
    bool bad = false;
    next(text, at, bad);
    if (bad) return start;
  }
  return std::string_view::npos;
}

std::string repaired(std::string_view text) {
  std::string result;
  for (const char32_t c : code_points(text)) append(result, c);
  return result;
}

std::vector<char32_t> code_points(std::string_view text) {
  std::vector<char32_t> points;
  for (std::size_t at = 0; at < text.size();) {
    bool bad = false;
    points.push_back(next(text, at, bad));
  }
  return points;
}

void append(std::string& text, char32_t c) {
  if (c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) return;
  auto put = [&](char32_t byte) { text.push_back(static_cast<char>(static_cast<unsigned char>(byte))); };
  if (c < 0x80) return put(c);
  if (c < 0x800) {
    put(0xC0 | c >> 6);
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
  }
  put(0x80 | (c & 0x3F));
}

std::size_t length_from_first(char first) {
  const auto byte = static_cast<unsigned char>(first);
  if (byte < 0xC0) return 1;
  if (byte < 0xE0) return 2;
  return byte < 0xF0 ? 3 : 4;
}

std::string normalized(std::string_view text, Form form) {
  switch (form) {
    case Form::nfc: return mapped(text, 0);
    case Form::nfd: return mapped(text, 1);
    case Form::nfkc: return mapped(text, 2);
    case Form::nfkd: return mapped(text, 3);
  }
  fail("unicode: normal form not available");
}
std::string lower(std::string_view text) { return mapped(text, 4); }
std::string without_accents(std::string_view text) { return mapped(text, 5); }

bool is_space(char32_t c) { return is_class(c, 0); }
bool is_control(char32_t c) { return c != '\t' && c != '\n' && c != '\r' && is_class(c, 1); }
bool is_punctuation(char32_t c) {
  if ((c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126)) return true;
  return is_class(c, 2);
}
bool is_cjk(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B820 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}
bool is_number(char32_t c) { return is_class(c, 3); }

struct Regex::Compiled {
  int number = -1;
};

Regex::Regex(const std::string& pattern, const std::string& where) : compiled_(std::make_unique<Compiled>()) {
  compiled_->number = rootdk_host_compile(pattern.data(), static_cast<int>(pattern.size()));
  require(compiled_->number >= 0, where, ": the expression ", pattern, " is not supported by this browser");
}
Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

std::vector<std::pair<std::size_t, std::size_t>> Regex::matches(std::string_view text) const {
  std::int32_t* memory = rootdk_host_match(compiled_->number, text.data(), static_cast<int>(text.size()));
  std::vector<std::pair<std::size_t, std::size_t>> found;
  std::size_t byte = 0;  // and its offset in UTF-16 units:
  std::int32_t unit = 0;
  auto byte_of = [&](std::int32_t wanted) {
    while (unit < wanted) {
      const std::size_t length = length_from_first(text[byte]);
      unit += length == 4 ? 2 : 1;
      byte += length;
    }
    return byte;
  };
  for (std::int32_t i = 0; i < memory[0]; ++i) {
    const std::size_t begin = byte_of(memory[1 + 2 * i]);
    found.emplace_back(begin, byte_of(memory[2 + 2 * i]));
  }
  std::free(memory);
  return found;
}

}  // namespace rootdk::unicode
