#pragma once

// Text for people: colour where the terminal takes it, tables that line up, shades for weights.

#include <string>
#include <string_view>
#include <vector>

namespace rootdk::tools {

// Colours only on a terminal, and never where NO_COLOR is set or TERM is dumb.
class Style {
 public:
  explicit Style(bool colour) : colour_(colour) {}
  static Style of_stdout();

  std::string bold(std::string_view text) const { return wrap("1", text); }
  std::string dim(std::string_view text) const { return wrap("2", text); }
  std::string green(std::string_view text) const { return wrap("32", text); }
  std::string yellow(std::string_view text) const { return wrap("33", text); }
  std::string cyan(std::string_view text) const { return wrap("36", text); }

 private:
  std::string wrap(std::string_view code, std::string_view text) const;

  bool colour_;
};

// Whether the terminal shows UTF-8: as LC_ALL, LC_CTYPE or LANG say, and yes where all are unset.
bool terminal_has_utf8();
// The text as the terminal can show it: itself, or ASCII of the same meaning. Shades and bars keep their width.
std::string for_terminal(std::string_view text);

// Columns of a terminal that the text takes: code points, colour codes not counted.
std::size_t display_width(std::string_view text);
std::string pad_right(std::string_view text, std::size_t width);
std::string pad_left(std::string_view text, std::size_t width);

// printf into a string.
[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);

// Columns as wide as their widest cell; the first `left` columns stand left, the others right.
class Table {
 public:
  explicit Table(std::size_t left = 1) : left_(left) {}
  void add(std::vector<std::string> cells);
  std::string text(std::string_view indent = "  ") const;

 private:
  std::size_t left_;
  std::vector<std::vector<std::string>> rows_;
};

// A weight in [0, 1] as `width` equal cells of shade: blank, then light to full.
std::string shade(double weight, std::size_t width);
// A share of `width` cells as a bar with eighths of a cell.
std::string bar(double share, std::size_t width);

}  // namespace rootdk::tools
