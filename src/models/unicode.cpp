#include "models/unicode.h"

#include <unicode/normalizer2.h>
#include <unicode/regex.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>
#include <unicode/utext.h>
#include <unicode/utf8.h>

#include <algorithm>

#include "core/check.h"
#include "models/text_budget.h"

namespace rootdk::unicode {
namespace {

icu::UnicodeString wide(std::string_view text) {
  return icu::UnicodeString::fromUTF8(icu::StringPiece(text.data(), static_cast<std::int32_t>(text.size())));
}

std::string narrow(const icu::UnicodeString& text) {
  std::string result;
  text.toUTF8String(result);
  return result;
}

const icu::Normalizer2& normalizer(Form form) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* found = nullptr;
  switch (form) {
    case Form::nfc: found = icu::Normalizer2::getNFCInstance(status); break;
    case Form::nfd: found = icu::Normalizer2::getNFDInstance(status); break;
    case Form::nfkc: found = icu::Normalizer2::getNFKCInstance(status); break;
    case Form::nfkd: found = icu::Normalizer2::getNFKDInstance(status); break;
  }
  require(U_SUCCESS(status) && found, "unicode: normal form not available: ", u_errorName(status));
  return *found;
}

}  // namespace

std::size_t find_invalid(std::string_view text) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(text.data());
  const auto size = static_cast<std::int64_t>(text.size());
  for (std::int64_t i = 0; i < size;) {
    const std::int64_t start = i;
    UChar32 c = 0;
    U8_NEXT(bytes, i, size, c);
    if (c < 0) return static_cast<std::size_t>(start);
  }
  return std::string_view::npos;
}

std::string repaired(std::string_view text) {
  std::string result;
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(text.data());
  const auto size = static_cast<std::int64_t>(text.size());
  for (std::int64_t i = 0; i < size;) {
    UChar32 c = 0;
    U8_NEXT(bytes, i, size, c);
    append(result, c < 0 ? char32_t{0xFFFD} : static_cast<char32_t>(c));
  }
  return result;
}

std::vector<char32_t> code_points(std::string_view text) {
  std::vector<char32_t> points;
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(text.data());
  const auto size = static_cast<std::int64_t>(text.size());
  for (std::int64_t i = 0; i < size;) {
    UChar32 c = 0;
    U8_NEXT(bytes, i, size, c);
    points.push_back(c < 0 ? char32_t{0xFFFD} : static_cast<char32_t>(c));
  }
  return points;
}

void append(std::string& text, char32_t code_point) {
  std::uint8_t bytes[U8_MAX_LENGTH];
  std::int32_t size = 0;
  UBool error = false;
  U8_APPEND(bytes, size, U8_MAX_LENGTH, static_cast<UChar32>(code_point), error);
  if (!error) text.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(size));
}

std::size_t length_from_first(char first) {
  const auto byte = static_cast<unsigned char>(first);
  if (byte < 0xC0) return 1;
  if (byte < 0xE0) return 2;
  return byte < 0xF0 ? 3 : 4;
}

std::string normalized(std::string_view text, Form form) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::UnicodeString result = normalizer(form).normalize(wide(text), status);
  require(U_SUCCESS(status), "unicode: normalisation failed: ", u_errorName(status));
  return narrow(result);
}

std::string lower(std::string_view text) {
  std::string result;
  for (const char32_t c : code_points(text)) append(result, static_cast<char32_t>(u_tolower(static_cast<UChar32>(c))));
  return result;
}

std::string without_accents(std::string_view text) {
  std::string result;
  for (const char32_t c : code_points(normalized(text, Form::nfd))) {
    if (u_charType(static_cast<UChar32>(c)) != U_NON_SPACING_MARK) append(result, c);
  }
  return result;
}

bool is_space(char32_t c) { return u_isUWhiteSpace(static_cast<UChar32>(c)); }

bool is_control(char32_t c) {
  if (c == '\t' || c == '\n' || c == '\r') return false;
  const auto type = u_charType(static_cast<UChar32>(c));
  return type == U_CONTROL_CHAR || type == U_FORMAT_CHAR || type == U_PRIVATE_USE_CHAR || type == U_SURROGATE ||
         type == U_UNASSIGNED;
}

bool is_punctuation(char32_t c) {
  if ((c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126)) return true;
  return u_ispunct(static_cast<UChar32>(c));
}

bool is_cjk(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B820 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

bool is_number(char32_t c) { return (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_N_MASK) != 0; }

struct Regex::Compiled {
  std::unique_ptr<icu::RegexPattern> pattern;
  std::string text;
};

Regex::Regex(const std::string& pattern, const std::string& where) : compiled_(std::make_unique<Compiled>()) {
  UErrorCode status = U_ZERO_ERROR;
  UParseError error{};
  compiled_->text = pattern;
  compiled_->pattern.reset(icu::RegexPattern::compile(wide(pattern), 0, error, status));
  require(U_SUCCESS(status) && compiled_->pattern, where, ": the expression ", pattern,
          " is not supported: ", u_errorName(status), " at ", error.offset);
}
Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

std::vector<std::pair<std::size_t, std::size_t>> Regex::matches(std::string_view text) const {
  const TextBudget budget(text.size());  // where the caller has none
  // ICU keeps a frame for each character of a run: room in proportion to the text, within what ICU can count.
  const std::int64_t stack_limit =
      std::min<std::int64_t>((16 << 20) + 64 * static_cast<std::int64_t>(text.size()), 1 << 30);
  UErrorCode status = U_ZERO_ERROR;
  const std::unique_ptr<UText, UText* (*)(UText*)> input(
      utext_openUTF8(nullptr, text.data(), static_cast<std::int64_t>(text.size()), &status), utext_close);
  const std::unique_ptr<icu::RegexMatcher> matcher(compiled_->pattern->matcher(status));
  std::vector<std::pair<std::size_t, std::size_t>> found;
  if (U_SUCCESS(status)) {
    // Called every 10,000 steps of the matcher.
    matcher->setMatchCallback([](const void*, std::int32_t) -> UBool { return !TextBudget::time_is_up(); }, nullptr,
                              status);
    matcher->setStackLimit(static_cast<std::int32_t>(stack_limit), status);
    matcher->reset(input.get());
    while (U_SUCCESS(status) && matcher->find(status)) {
      const std::int64_t begin = matcher->start64(status), end = matcher->end64(status);
      found.emplace_back(static_cast<std::size_t>(begin), static_cast<std::size_t>(end));
      if (found.size() % 64 == 0) TextBudget::require_time();
    }
  }
  if (status == U_REGEX_STOPPED_BY_CALLER) TextBudget::require_time();
  require(U_SUCCESS(status), "tokenizer: the expression ", compiled_->text,
          " failed on this text: ", u_errorName(status));
  return found;
}

}  // namespace rootdk::unicode
