// Pre-tokenizers of tokenizer.json.

#include <algorithm>

#include "core/immortal.h"
#include "models/tokenizer_parts.h"
#include "models/unicode.h"

namespace rootdk {
namespace {

// How GPT-2 cuts text: contractions, words and numbers with the space before them, runs of signs, runs of spaces.
constexpr const char* kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

using Ranges = std::vector<std::pair<std::size_t, std::size_t>>;

enum class Behaviour { isolated, removed, merged_with_previous, merged_with_next, contiguous };

Behaviour behaviour_named(const std::string& name, const std::string& where) {
  if (name == "Isolated") return Behaviour::isolated;
  if (name == "Removed") return Behaviour::removed;
  if (name == "MergedWithPrevious") return Behaviour::merged_with_previous;
  if (name == "MergedWithNext") return Behaviour::merged_with_next;
  if (name == "Contiguous") return Behaviour::contiguous;
  fail(where, ": split behavior \"", name, "\" is not supported");
}

// Cuts text at the ranges; the rest between them are pieces too.
std::vector<std::string> cut(const std::string& text, const Ranges& matches, Behaviour behaviour) {
  std::vector<std::string> pieces;
  std::size_t done = 0;
  std::string pending;  // a match that waits for the next piece
  auto emit = [&](std::string piece) {
    piece = std::exchange(pending, {}) + piece;
    if (!piece.empty()) pieces.push_back(std::move(piece));
  };
  bool after_match = false;
  for (const auto& [begin, end] : matches) {
    if (begin > done) {
      emit(text.substr(done, begin - done));
      after_match = false;
    }
    std::string match = text.substr(begin, end - begin);
    done = end;
    switch (behaviour) {
      case Behaviour::isolated: emit(std::move(match)); break;
      case Behaviour::removed: break;
      case Behaviour::merged_with_previous:
        if (!pieces.empty() && !after_match) {
          pieces.back() += match;
        } else {
          emit(std::move(match));
        }
        break;
      case Behaviour::merged_with_next: pending += match; break;
      case Behaviour::contiguous:
        if (after_match && !pieces.empty()) {
          pieces.back() += match;
        } else {
          emit(std::move(match));
        }
        break;
    }
    after_match = true;
  }
  if (done < text.size()) emit(text.substr(done));
  if (!pending.empty()) pieces.push_back(std::move(pending));
  return pieces;
}

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (std::string_view("\\^$.|?*+()[]{}").find(c) != std::string_view::npos) result += '\\';
    result += c;
  }
  return result;
}

// One piece for each run of characters of the same class; class 0 is dropped, negative classes stand alone.
template <class ClassOf>
std::vector<std::string> cut_by_class(const std::string& text, ClassOf class_of) {
  std::vector<std::string> pieces;
  int before = 0;
  for (const char32_t c : unicode::code_points(text)) {
    const int now = class_of(c);
    if (now != 0) {
      if (now != before || now < 0) pieces.emplace_back();
      unicode::append(pieces.back(), c);
    }
    before = now;
  }
  return pieces;
}

SplitStep make_split(const JsonFields& fields) {
  const Json* pattern = fields.find({"pattern"});
  require(pattern && pattern->is_object(), fields.where(), ": Split needs a pattern");
  const JsonFields which(*pattern, fields.where());
  const std::string expression = which.has("Regex") ? which.text({"Regex"}, "") : escaped(which.text({"String"}, ""));
  const auto regex = std::make_shared<unicode::Regex>(expression, fields.where());
  Behaviour behaviour = behaviour_named(fields.text({"behavior"}, "Isolated"), fields.where());
  const bool invert = fields.boolean({"invert"}, false);
  return [regex, behaviour, invert](std::string text, bool) {
    Ranges ranges = regex->matches(text);
    if (invert) {  // what lies between the matches is what the behaviour acts on
      Ranges between;
      std::size_t done = 0;
      for (const auto& [begin, end] : ranges) {
        if (begin > done) between.emplace_back(done, begin);
        done = end;
      }
      if (done < text.size()) between.emplace_back(done, text.size());
      ranges = std::move(between);
    }
    return cut(text, ranges, behaviour);
  };
}

SplitStep make_byte_level(const JsonFields& fields) {
  const bool prefix = fields.boolean({"add_prefix_space"}, true);
  const auto regex = fields.boolean({"use_regex"}, true)
                         ? std::make_shared<unicode::Regex>(kGpt2Pattern, fields.where())
                         : std::shared_ptr<unicode::Regex>();
  return [prefix, regex](std::string text, bool first) {
    if (prefix && first && !text.empty() && text.front() != ' ') text = " " + text;
    std::vector<std::string> pieces =
        regex ? cut(text, regex->matches(text), Behaviour::isolated) : std::vector<std::string>{text};
    for (std::string& piece : pieces) {
      std::string mapped;
      for (const char c : piece) mapped += byte_characters()[static_cast<unsigned char>(c)];
      piece = std::move(mapped);
    }
    return pieces;
  };
}

SplitStep make_metaspace(const JsonFields& fields) {
  const std::string mark = fields.text({"replacement"}, kSpaceMark);
  std::string scheme = fields.text({"prepend_scheme"}, fields.boolean({"add_prefix_space"}, true) ? "always" : "never");
  require(scheme == "always" || scheme == "never" || scheme == "first", fields.where(), ": prepend_scheme \"", scheme,
          "\" is not supported; supported: always, first, never");
  require(!mark.empty(), fields.where(), ": Metaspace with an empty replacement");
  const bool split = fields.boolean({"split"}, true);
  return [=](std::string text, bool first) {
    text = replace_all(std::move(text), " ", mark);
    if ((scheme == "always" || (scheme == "first" && first)) && !text.starts_with(mark)) text = mark + text;
    if (!split) return std::vector<std::string>{text};
    std::vector<std::string> pieces;  // each begins with a mark
    std::size_t begin = 0;
    while (begin < text.size()) {
      const std::size_t next = text.find(mark, begin + (text.compare(begin, mark.size(), mark) == 0 ? mark.size() : 0));
      pieces.push_back(text.substr(begin, next == std::string::npos ? next : next - begin));
      begin = next == std::string::npos ? text.size() : next;
    }
    return pieces;
  };
}

}  // namespace

const std::vector<std::string>& byte_characters() {
  static const std::vector<std::string>& characters = immortal([] {
    std::vector<std::string> result(256);
    char32_t next = 256;  // bytes that do not print get the characters from here on
    for (unsigned byte = 0; byte < 256; ++byte) {
      const bool prints = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
      unicode::append(result[byte], prints ? static_cast<char32_t>(byte) : next++);
    }
    return result;
  }());
  return characters;
}

std::string bytes_of_characters(std::string_view text) {
  static const std::unordered_map<std::string, char>& bytes = immortal([] {
    std::unordered_map<std::string, char> result;
    for (std::size_t byte = 0; byte < 256; ++byte) result[byte_characters()[byte]] = static_cast<char>(byte);
    return result;
  }());
  std::string result;
  for (const char32_t c : unicode::code_points(text)) {
    std::string character;
    unicode::append(character, c);
    const auto found = bytes.find(character);
    if (found != bytes.end()) {
      result += found->second;
    } else {
      result += character;
    }
  }
  return result;
}

void add_splits(const Json& object, const std::string& where, std::vector<SplitStep>& into) {
  const JsonFields fields(object, where);
  const std::string type = fields.text({"type"}, "");
  if (type == "Sequence") {
    const Json* list = fields.find({"pretokenizers"});
    require(list && list->is_array(), where, ": Sequence needs a list of pretokenizers");
    for (const Json& step : *list) add_splits(step, where, into);
  } else if (type == "ByteLevel") {
    into.push_back(make_byte_level(fields));
  } else if (type == "Split") {
    into.push_back(make_split(fields));
  } else if (type == "Metaspace") {
    into.push_back(make_metaspace(fields));
  } else if (type == "BertPreTokenizer") {
    into.push_back([](std::string text, bool) {
      return cut_by_class(text, [](char32_t c) {
        if (unicode::is_space(c)) return 0;
        return unicode::is_punctuation(c) ? -1 : 1;
      });
    });
  } else if (type == "WhitespaceSplit") {
    into.push_back([](std::string text, bool) {
      return cut_by_class(text, [](char32_t c) { return unicode::is_space(c) ? 0 : 1; });
    });
  } else if (type == "Whitespace") {
    const auto regex = std::make_shared<unicode::Regex>(R"(\w+|[^\w\s]+)", where);
    into.push_back([regex](std::string text, bool) {
      std::vector<std::string> pieces;
      for (const auto& [begin, end] : regex->matches(text)) pieces.push_back(text.substr(begin, end - begin));
      return pieces;
    });
  } else if (type == "Digits") {
    const int number = fields.boolean({"individual_digits"}, false) ? -1 : 2;
    into.push_back([number](std::string text, bool) {
      return cut_by_class(text, [number](char32_t c) { return unicode::is_number(c) ? number : 1; });
    });
  } else {
    fail(where, ": pre-tokenizer \"", type,
         "\" is not supported; supported: Sequence, ByteLevel, Split, Metaspace, BertPreTokenizer, WhitespaceSplit, "
         "Whitespace, Digits");
  }
}

}  // namespace rootdk
