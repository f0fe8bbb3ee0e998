// Decoders of tokenizer.json: from tokens back to text.

#include "models/tokenizer_parts.h"
#include "models/unicode.h"

namespace rootdk {
namespace {

std::string joined(const std::vector<std::string>& tokens) {
  std::string text;
  for (const std::string& token : tokens) text += token;
  return text;
}

// <0x0A> and its like, where they stand for bytes.
std::optional<char> byte_of(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  auto digit = [](char c) -> int {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  const int high = digit(token[3]), low = digit(token[4]);
  if (high < 0 || low < 0) return std::nullopt;
  return static_cast<char>(high * 16 + low);
}

// Runs of byte tokens become the text they spell; each byte of a run that spells none becomes U+FFFD.
std::vector<std::string> bytes_joined(std::vector<std::string> tokens) {
  std::vector<std::string> result;
  std::string run;
  auto flush = [&] {
    if (run.empty()) return;
    if (unicode::find_invalid(run) == std::string_view::npos) {
      result.push_back(run);
    } else {
      for (std::size_t i = 0; i < run.size(); ++i) result.push_back("\xEF\xBF\xBD");
    }
    run.clear();
  };
  for (std::string& token : tokens) {
    if (const std::optional<char> byte = byte_of(token)) {
      run += *byte;
    } else {
      flush();
      result.push_back(std::move(token));
    }
  }
  flush();
  return result;
}

std::vector<std::string> strip_tokens(std::vector<std::string> tokens, const std::string& content, std::int64_t start,
                                      std::int64_t stop) {
  for (std::string& token : tokens) {
    for (std::int64_t i = 0; i < start && !content.empty() && token.starts_with(content); ++i) {
      token.erase(0, content.size());
    }
    for (std::int64_t i = 0; i < stop && !content.empty() && token.ends_with(content); ++i) {
      token.erase(token.size() - content.size());
    }
  }
  return tokens;
}

// English spacing as BERT's decoder puts it right.
std::string cleaned_up(std::string text) {
  const std::pair<std::string_view, std::string_view> rules[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : rules) text = replace_all(std::move(text), from, to);
  return text;
}

TokensStep make_word_piece(const JsonFields& fields) {
  const std::string prefix = fields.text({"prefix"}, "##");
  const bool cleanup = fields.boolean({"cleanup"}, true);
  return [prefix, cleanup](std::vector<std::string> tokens) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0 && tokens[i].starts_with(prefix)) {
        tokens[i].erase(0, prefix.size());
      } else if (i > 0) {
        tokens[i] = " " + tokens[i];
      }
      if (cleanup) tokens[i] = cleaned_up(tokens[i]);
    }
    return tokens;
  };
}

TokensStep make_metaspace_decoder(const JsonFields& fields) {
  const std::string mark = fields.text({"replacement"}, kSpaceMark);
  const bool prefixed =
      fields.text({"prepend_scheme"}, fields.boolean({"add_prefix_space"}, true) ? "always" : "never") != "never";
  return [mark, prefixed](std::vector<std::string> tokens) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (i == 0 && prefixed && tokens[i].starts_with(mark)) tokens[i].erase(0, mark.size());
      tokens[i] = replace_all(std::move(tokens[i]), mark, " ");
    }
    return tokens;
  };
}

TokensStep make_replace_decoder(const JsonFields& fields) {
  const Json* pattern = fields.find({"pattern"});
  require(pattern && pattern->is_object(), fields.where(), ": Replace needs a pattern");
  const std::string from = JsonFields(*pattern, fields.where()).text({"String"}, "");
  require(!from.empty(), fields.where(), ": a decoder's Replace needs a String pattern");
  return [from, to = fields.text({"content"}, "")](std::vector<std::string> tokens) {
    for (std::string& token : tokens) token = replace_all(std::move(token), from, to);
    return tokens;
  };
}

}  // namespace

TokensStep make_decoder(const Json& object, const std::string& where) {
  const JsonFields fields(object, where);
  const std::string type = fields.text({"type"}, "");
  if (type == "Sequence") {
    const Json* list = fields.find({"decoders"});
    require(list && list->is_array(), where, ": Sequence needs a list of decoders");
    std::vector<TokensStep> steps;
    for (const Json& step : *list) steps.push_back(make_decoder(step, where));
    return [steps](std::vector<std::string> tokens) {
      for (const TokensStep& step : steps) tokens = step(std::move(tokens));
      return tokens;
    };
  }
  if (type == "ByteLevel") {
    return
        [](std::vector<std::string> tokens) { return std::vector<std::string>{bytes_of_characters(joined(tokens))}; };
  }
  if (type == "ByteFallback") return bytes_joined;
  if (type == "Fuse") return [](std::vector<std::string> tokens) { return std::vector<std::string>{joined(tokens)}; };
  if (type == "Replace") return make_replace_decoder(fields);
  if (type == "Metaspace") return make_metaspace_decoder(fields);
  if (type == "WordPiece") return make_word_piece(fields);
  if (type == "Strip") {
    const std::string content = fields.text({"content"}, " ");
    const std::int64_t start = fields.integer({"start"}, 0), stop = fields.integer({"stop"}, 0);
    return [=](std::vector<std::string> tokens) { return strip_tokens(std::move(tokens), content, start, stop); };
  }
  fail(where, ": decoder \"", type,
       "\" is not supported; supported: Sequence, ByteLevel, ByteFallback, Fuse, Replace, Metaspace, WordPiece, Strip");
}

}  // namespace rootdk
