#include "lab/report/mathml.h"

#include <cctype>
#include <map>

#include "core/check.h"
#include "lab/report/html.h"

namespace rootdk::lab {
namespace {

const std::map<std::string_view, std::string_view> kIdentifiers = {{"tau", "τ"}, {"pi", "π"},      {"sigma", "σ"},
                                                                   {"mu", "μ"},  {"partial", "∂"}, {"infty", "∞"}};
const std::map<std::string_view, std::string_view> kOperators = {
    {"cdot", "·"}, {"le", "≤"},      {"ge", "≥"},      {"ne", "≠"},    {"to", "→"},   {"approx", "≈"},
    {"sum", "∑"},  {"max", "max"},   {"lesssim", "≲"}, {"times", "×"}, {"dots", "…"}, {"in", "∈"},
    {"ln", "ln"},  {"tanh", "tanh"}, {"exp", "exp"},   {"prod", "∏"}};

// A browser trims the spaces at the ends of an <mtext>; those that cannot break stay.
std::string outer_spaces_kept(std::string text) {
  constexpr std::string_view kStaying = "\u00a0";
  if (text.ends_with(' ')) text.replace(text.size() - 1, 1, kStaying);
  if (text.starts_with(' ')) text.replace(0, 1, kStaying);
  return text;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  std::string all() {
    std::string result = row('\0');
    require(at_ == text_.size(), "formula: '", text_, "' has a '}' too many");
    return result;
  }

 private:
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  // Everything up to the closing character, scripts attached to what stands before them.
  std::string row(char closing) {
    std::string result;
    while (peek() != closing && peek() != '}') {
      require(at_ < text_.size(), "formula: '", text_, "' ends inside a group or lacks an argument");
      if (peek() == ' ') {
        ++at_;
        continue;
      }
      result += scripted(atom());
    }
    return result;
  }

  std::string scripted(const std::string& base) {
    std::string below, above;
    for (;;) {
      if (peek() == '_') {
        ++at_;
        below = atom();
      } else if (peek() == '^') {
        ++at_;
        above = atom();
      } else {
        break;
      }
    }
    if (!below.empty() && !above.empty()) return "<msubsup>" + base + below + above + "</msubsup>";
    if (!below.empty()) return "<msub>" + base + below + "</msub>";
    if (!above.empty()) return "<msup>" + base + above + "</msup>";
    return base;
  }

  std::string group() {
    while (peek() == ' ') ++at_;
    // Without braces an argument is one character: \tfrac12 is a half.
    if (std::isdigit(static_cast<unsigned char>(peek()))) return "<mn>" + std::string(1, text_[at_++]) + "</mn>";
    if (peek() != '{') return atom();
    ++at_;
    std::string result = "<mrow>" + row('}') + "</mrow>";
    require(peek() == '}', "formula: '", text_, "' lacks a '}'");
    ++at_;
    return result;
  }

  std::string raw_group() {
    require(peek() == '{', "formula: '", text_, "' lacks a '{'");
    const std::size_t end = text_.find('}', at_);
    require(end != std::string_view::npos, "formula: '", text_, "' lacks a '}'");
    const std::string_view inside = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return escape_html(inside);
  }

  std::string atom() {
    const char c = peek();
    if (c == '{') return group();
    if (c == '\\') return command();
    if (std::isdigit(static_cast<unsigned char>(c))) {
      const std::size_t begin = at_;
      while (std::isdigit(static_cast<unsigned char>(peek())) || peek() == '.') ++at_;
      return "<mn>" + std::string(text_.substr(begin, at_ - begin)) + "</mn>";
    }
    ++at_;
    if (std::isalpha(static_cast<unsigned char>(c))) return "<mi>" + std::string(1, c) + "</mi>";
    if (c == '-') return "<mo>−</mo>";
    // Without a mathematical font a browser stretches fences far beyond what they hold.
    if (c == '(' || c == ')' || c == '[' || c == ']') return "<mo stretchy=\"false\">" + std::string(1, c) + "</mo>";
    if (c == '|') return "<mo stretchy=\"false\" lspace=\"0\" rspace=\"0\">|</mo>";
    return "<mo>" + escape_html(std::string_view(&c, 1)) + "</mo>";
  }

  std::string command() {
    ++at_;
    const std::size_t begin = at_;
    while (std::isalpha(static_cast<unsigned char>(peek()))) ++at_;
    const std::string_view name = text_.substr(begin, at_ - begin);
    if (name.empty()) {  // \, is a thin space
      ++at_;
      return "<mspace width=\"0.17em\"/>";
    }
    if (name == "frac" || name == "tfrac") {
      const std::string above = group(), below = group();
      return "<mfrac>" + above + below + "</mfrac>";
    }
    if (name == "sqrt") return "<msqrt>" + group() + "</msqrt>";
    if (name == "tilde") return "<mover>" + group() + "<mo>~</mo></mover>";
    if (name == "text") return "<mtext>" + outer_spaces_kept(raw_group()) + "</mtext>";
    if (name == "operatorname") return "<mi>" + raw_group() + "</mi>";
    if (const auto it = kIdentifiers.find(name); it != kIdentifiers.end())
      return "<mi>" + std::string(it->second) + "</mi>";
    if (const auto it = kOperators.find(name); it != kOperators.end())
      return "<mo>" + std::string(it->second) + "</mo>";
    fail("formula: \\", name, " in '", text_, "' is not known");
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

std::string mathml(std::string_view latex, bool display) {
  return std::string("<math") + (display ? " display=\"block\"" : "") + "><mrow>" + Parser(latex).all() +
         "</mrow></math>";
}

}  // namespace rootdk::lab
