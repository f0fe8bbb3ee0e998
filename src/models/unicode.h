#pragma once

// Unicode as tokenizers need it: UTF-8 in and out, normal forms, character classes and regular expressions. The only
// place that calls ICU.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rootdk::unicode {

// The offset of the first byte that is not valid UTF-8, or npos.
std::size_t find_invalid(std::string_view text);
// Invalid bytes become U+FFFD.
std::string repaired(std::string_view text);

// Code points of valid UTF-8.
std::vector<char32_t> code_points(std::string_view text);
void append(std::string& text, char32_t code_point);
// Bytes of the character that begins with this byte.
std::size_t length_from_first(char first);

enum class Form { nfc, nfd, nfkc, nfkd };
std::string normalized(std::string_view text, Form form);
std::string lower(std::string_view text);
std::string without_accents(std::string_view text);  // NFD without its non-spacing marks

bool is_space(char32_t c);
bool is_control(char32_t c);      // not tab, newline, carriage return
bool is_punctuation(char32_t c);  // as BERT sees it: ASCII symbols count
bool is_cjk(char32_t c);
bool is_number(char32_t c);

// A compiled expression. Matching is bounded in time and memory, whoever wrote the expression.
class Regex {
 public:
  // Throws rootdk::Error that quotes the expression.
  Regex(const std::string& pattern, const std::string& where);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // The matches [begin, end) in order, in bytes of valid UTF-8.
  std::vector<std::pair<std::size_t, std::size_t>> matches(std::string_view text) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace rootdk::unicode
