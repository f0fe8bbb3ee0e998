#include "models/train_tokenizer.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>
#include <utility>

#include "models/tokenizer_parts.h"
#include "models/unicode.h"

namespace rootdk {
namespace {

void require_text(std::string_view text) {
  require(!text.empty(), "tokenizer: the text is empty");
  const std::size_t invalid = unicode::find_invalid(text);
  require(invalid == std::string_view::npos, "tokenizer: the text is not valid UTF-8 at byte ", invalid);
}

// A word of the text as tokens, and how often it occurs.
struct Word {
  std::vector<std::int32_t> tokens;
  std::int64_t count = 0;
};

using Pair = std::pair<std::int32_t, std::int32_t>;

Pair most_frequent(const std::vector<Word>& words) {
  std::map<Pair, std::int64_t> counts;
  for (const Word& word : words) {
    for (std::size_t i = 0; i + 1 < word.tokens.size(); ++i) counts[{word.tokens[i], word.tokens[i + 1]}] += word.count;
  }
  Pair best{-1, -1};
  std::int64_t most = 1;  // a pair that occurs once is no pair
  for (const auto& [pair, count] : counts) {
    if (count > most) {
      most = count;
      best = pair;
    }
  }
  return best;
}

void join(std::vector<Word>& words, Pair pair, std::int32_t id) {
  for (Word& word : words) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < word.tokens.size(); ++i) {
      const bool here = i + 1 < word.tokens.size() && word.tokens[i] == pair.first && word.tokens[i + 1] == pair.second;
      word.tokens[kept++] = here ? id : word.tokens[i];
      i += here;
    }
    word.tokens.resize(kept);
  }
}

}  // namespace

std::string character_tokenizer_json(std::string_view text) {
  require_text(text);
  std::set<char32_t> characters;
  for (const char32_t c : unicode::code_points(text)) characters.insert(c);
  nlohmann::json vocab = {{"<unk>", 0}};
  std::int32_t next = 1;
  for (const char32_t c : characters) {
    std::string token;
    unicode::append(token, c);
    vocab[token] = next++;
  }
  const nlohmann::json unknown = {{"id", 0},         {"content", "<unk>"},  {"single_word", false}, {"lstrip", false},
                                  {"rstrip", false}, {"normalized", false}, {"special", true}};
  return nlohmann::json{{"version", "1.0"},
                        {"added_tokens", nlohmann::json::array({unknown})},
                        {"normalizer", nullptr},
                        {"pre_tokenizer", nullptr},
                        {"post_processor", nullptr},
                        {"decoder", {{"type", "Fuse"}}},
                        {"model",
                         {{"type", "BPE"},
                          {"unk_token", "<unk>"},
                          {"fuse_unk", false},
                          {"vocab", vocab},
                          {"merges", nlohmann::json::array()}}}}
      .dump(1);
}

std::string bpe_tokenizer_json(std::string_view text, std::int64_t vocab_size) {
  require_text(text);
  require(vocab_size >= 256 && vocab_size <= 65536, "tokenizer: a BPE vocabulary of ", vocab_size,
          " is not between 256 and 65536");
  const nlohmann::json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  std::vector<SplitStep> splits;
  add_splits(parse_json(byte_level.dump(), "tokenizer"), "tokenizer", splits);
  std::unordered_map<std::string, std::int64_t> counts;
  for (const std::string& piece : splits.front()(std::string(text), true)) ++counts[piece];

  std::vector<std::string> tokens = byte_characters();
  std::unordered_map<std::string, std::int32_t> ids;
  for (std::size_t i = 0; i < tokens.size(); ++i) ids[tokens[i]] = static_cast<std::int32_t>(i);
  std::vector<Word> words;
  for (const auto& [piece, count] : std::map(counts.begin(), counts.end())) {  // in a fixed order
    Word word{.tokens = {}, .count = count};
    for (const char32_t c : unicode::code_points(piece)) {
      std::string character;
      unicode::append(character, c);
      word.tokens.push_back(ids.at(character));
    }
    words.push_back(std::move(word));
  }
  nlohmann::json merges = nlohmann::json::array();
  while (static_cast<std::int64_t>(tokens.size()) < vocab_size) {
    const Pair pair = most_frequent(words);
    if (pair.first < 0) break;
    const std::string left = tokens[static_cast<std::size_t>(pair.first)],
                      right = tokens[static_cast<std::size_t>(pair.second)];
    merges.push_back({left, right});
    join(words, pair, static_cast<std::int32_t>(tokens.size()));
    tokens.push_back(left + right);
  }
  nlohmann::json vocab = nlohmann::json::object();
  for (std::size_t i = 0; i < tokens.size(); ++i) vocab[tokens[i]] = i;
  return nlohmann::json{{"version", "1.0"},
                        {"added_tokens", nlohmann::json::array()},
                        {"normalizer", nullptr},
                        {"pre_tokenizer", byte_level},
                        {"post_processor", nullptr},
                        {"decoder", {{"type", "ByteLevel"}}},
                        {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}}
      .dump(1);
}

}  // namespace rootdk
