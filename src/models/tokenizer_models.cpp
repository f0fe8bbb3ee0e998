// The models of tokenizer.json: BPE, WordPiece, Unigram.

#include <algorithm>
#include <limits>
#include <queue>

#include "models/text_budget.h"
#include "models/tokenizer_parts.h"
#include "models/unicode.h"

namespace rootdk {
namespace {

constexpr std::int32_t kNone = -1;

std::string byte_token(unsigned char byte) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  return std::string("<0x") + kDigits[byte >> 4] + kDigits[byte & 15] + ">";
}

void read_vocabulary(const JsonFields& fields, Vocabulary& vocabulary) {
  const Json* vocab = fields.find({"vocab"});
  require(vocab && vocab->is_object(), fields.where(), ": model.vocab must be an object of tokens and ids");
  for (const auto& [token, id] : vocab->items()) {
    require(id.is_number_integer() && id.get<std::int64_t>() >= 0 && id.get<std::int64_t>() < (1 << 24), fields.where(),
            ": the id of token \"", token, "\" must be a whole number below ", 1 << 24, ", not ",
            JsonFields::shown(id));
    vocabulary.add(token, id.get<std::int32_t>());
  }
}

void require_empty(const JsonFields& fields, std::string_view name) {
  const std::string value = fields.text({name}, "");
  require(value.empty(), fields.where(), ": model.", name, " \"", value, "\" is not supported");
}

// What stands for a character outside the vocabulary.
struct Unknown {
  std::int32_t id = kNone;
  bool fuse = false;                      // one for a whole run
  std::vector<std::int32_t> byte_tokens;  // <0x00> to <0xFF>, or empty: no byte fallback
};

Unknown read_unknown(const JsonFields& fields, const Vocabulary& vocabulary) {
  Unknown unknown;
  const std::string token = fields.text({"unk_token"}, "");
  if (!token.empty()) unknown.id = vocabulary.find(token).value_or(kNone);
  unknown.fuse = fields.boolean({"fuse_unk"}, false);
  if (fields.boolean({"byte_fallback"}, false)) {
    for (int byte = 0; byte < 256; ++byte) {
      const std::optional<std::int32_t> id = vocabulary.find(byte_token(static_cast<unsigned char>(byte)));
      if (!id) return unknown;  // without all of them there is no fallback
      unknown.byte_tokens.push_back(*id);
    }
  }
  return unknown;
}

// Adds the ids for a character that is not in the vocabulary.
void add_unknown(const Unknown& unknown, std::string_view character, std::vector<std::int32_t>& ids) {
  if (!unknown.byte_tokens.empty()) {
    for (const char c : character) ids.push_back(unknown.byte_tokens[static_cast<unsigned char>(c)]);
  } else if (unknown.id != kNone && !(unknown.fuse && !ids.empty() && ids.back() == unknown.id)) {
    ids.push_back(unknown.id);
  }
}

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) | static_cast<std::uint32_t>(right);
}

class Bpe : public TokenModel {
 public:
  Bpe(const JsonFields& fields, Vocabulary& vocabulary) : vocabulary_(vocabulary) {
    read_vocabulary(fields, vocabulary);
    require_empty(fields, "continuing_subword_prefix");
    require_empty(fields, "end_of_word_suffix");
    unknown_ = read_unknown(fields, vocabulary);
    whole_first_ = fields.boolean({"ignore_merges"}, false);
    const Json* merges = fields.find({"merges"});
    require(merges && merges->is_array(), fields.where(), ": model.merges must be a list");
    for (const Json& merge : *merges) add_merge(merge, fields.where());
  }

  void encode(std::string_view piece, std::vector<std::int32_t>& ids) const override {
    if (whole_first_) {
      if (const auto whole = vocabulary_.find(std::string(piece))) return ids.push_back(*whole);
    }
    std::vector<Symbol> symbols = characters(piece);
    merge(symbols);
    for (std::int32_t i = symbols.empty() ? kNone : 0; i != kNone; i = symbols[static_cast<std::size_t>(i)].next) {
      ids.push_back(symbols[static_cast<std::size_t>(i)].id);
    }
  }

 private:
  struct Merge {
    std::int32_t rank, id;
  };
  struct Symbol {
    std::int32_t id, previous, next;
    bool gone = false;
  };
  struct Candidate {  // the pair (left, right of left); stale once either symbol has changed
    std::int32_t rank, left;
    std::uint64_t key;
    std::int32_t id;
    bool operator>(const Candidate& other) const { return std::pair(rank, left) > std::pair(other.rank, other.left); }
  };

  void add_merge(const Json& merge, const std::string& where) {
    std::string left, right;
    if (merge.is_string()) {
      const auto text = merge.get<std::string>();
      const std::size_t space = text.find(' ', 1);
      require(space != std::string::npos, where, ": merge \"", text, "\" has no two parts");
      left = text.substr(0, space);
      right = text.substr(space + 1);
    } else {
      require(merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string(), where,
              ": a merge must be a pair of tokens, not ", JsonFields::shown(merge));
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    }
    const auto a = vocabulary_.find(left), b = vocabulary_.find(right), both = vocabulary_.find(left + right);
    require(a && b && both, where, ": merge of \"", left, "\" and \"", right,
            "\": ", !a ? left : (!b ? right : left + right), " is not in the vocabulary");
    merges_.try_emplace(pair_key(*a, *b), Merge{static_cast<std::int32_t>(merges_.size()), *both});
  }

  std::vector<Symbol> characters(std::string_view piece) const {
    std::vector<std::int32_t> ids;
    for (std::size_t i = 0; i < piece.size();) {
      const std::size_t size = std::min(unicode::length_from_first(piece[i]), piece.size() - i);
      const std::string_view character = piece.substr(i, size);
      if (const auto id = vocabulary_.find(std::string(character))) {
        ids.push_back(*id);
      } else {
        add_unknown(unknown_, character, ids);
      }
      i += size;
    }
    std::vector<Symbol> symbols;
    const auto count = static_cast<std::int32_t>(ids.size());
    for (std::int32_t i = 0; i < count; ++i) {
      symbols.push_back({ids[static_cast<std::size_t>(i)], i - 1, i + 1 < count ? i + 1 : kNone});
    }
    return symbols;
  }

  // Joins the pair of lowest rank, the leftmost of equals, until no pair is left.
  void merge(std::vector<Symbol>& symbols) const {
    std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
    auto at = [&](std::int32_t i) -> Symbol& { return symbols[static_cast<std::size_t>(i)]; };
    auto propose = [&](std::int32_t left) {
      if (left == kNone || at(left).next == kNone) return;
      const std::uint64_t key = pair_key(at(left).id, at(at(left).next).id);
      const auto found = merges_.find(key);
      if (found != merges_.end()) queue.push({found->second.rank, left, key, found->second.id});
    };
    for (std::size_t i = 0; i < symbols.size(); ++i) propose(static_cast<std::int32_t>(i));
    while (!queue.empty()) {
      const Candidate best = queue.top();
      queue.pop();
      Symbol& left = at(best.left);
      if (left.gone || left.next == kNone || pair_key(left.id, at(left.next).id) != best.key) continue;
      Symbol& right = at(left.next);
      right.gone = true;
      left.id = best.id;
      left.next = right.next;
      if (left.next != kNone) at(left.next).previous = best.left;
      propose(left.previous);
      propose(best.left);
    }
  }

  const Vocabulary& vocabulary_;
  Unknown unknown_;
  bool whole_first_ = false;
  std::unordered_map<std::uint64_t, Merge> merges_;
};

class WordPiece : public TokenModel {
 public:
  WordPiece(const JsonFields& fields, Vocabulary& vocabulary) : vocabulary_(vocabulary) {
    read_vocabulary(fields, vocabulary);
    prefix_ = fields.text({"continuing_subword_prefix"}, "##");
    longest_word_ = fields.integer({"max_input_chars_per_word"}, 100);
    const std::string token = fields.text({"unk_token"}, "[UNK]");
    const auto id = vocabulary.find(token);
    require(id.has_value(), fields.where(), ": model.unk_token \"", token, "\" is not in the vocabulary");
    unknown_ = *id;
  }

  void encode(std::string_view piece, std::vector<std::int32_t>& ids) const override {
    const auto count = static_cast<std::int64_t>(unicode::code_points(piece).size());
    std::vector<std::int32_t> found;
    std::size_t begin = 0;
    while (begin < piece.size() && count <= longest_word_) {
      TextBudget::require_time();  // the square of the piece's length, where the file allows long words
      std::size_t end = piece.size();
      std::optional<std::int32_t> id;
      for (; end > begin; --end) {
        if (end < piece.size() && (static_cast<unsigned char>(piece[end]) & 0xC0u) == 0x80u)
          continue;  // inside a character
        id = vocabulary_.find((begin ? prefix_ : "") + std::string(piece.substr(begin, end - begin)));
        if (id) break;
      }
      if (!id) break;
      found.push_back(*id);
      begin = end;
    }
    if (begin < piece.size()) found = {unknown_};  // one that does not come apart is unknown as a whole
    ids.insert(ids.end(), found.begin(), found.end());
  }

 private:
  const Vocabulary& vocabulary_;
  std::string prefix_;
  std::int64_t longest_word_ = 100;
  std::int32_t unknown_ = 0;
};

// The split of largest summed log probability.
class Unigram : public TokenModel {
 public:
  Unigram(const JsonFields& fields, Vocabulary& vocabulary) : vocabulary_(vocabulary) {
    const Json* vocab = fields.find({"vocab"});
    require(vocab && vocab->is_array() && !vocab->empty(), fields.where(), ": model.vocab must be a list of pairs");
    double lowest = std::numeric_limits<double>::max();
    for (const Json& entry : *vocab) {
      require(entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_number(), fields.where(),
              ": an entry of model.vocab must be a token and its score, not ", JsonFields::shown(entry));
      const auto token = entry[0].get<std::string>();
      longest_ = std::max(longest_, token.size());
      lowest = std::min(lowest, entry[1].get<double>());
      vocabulary.add(token, static_cast<std::int32_t>(scores_.size()));
      scores_.push_back(entry[1].get<double>());
    }
    unknown_ = read_unknown(fields, vocabulary);
    unknown_.fuse = true;
    unknown_.id = static_cast<std::int32_t>(fields.integer({"unk_id"}, kNone));
    require(unknown_.id >= kNone && unknown_.id < static_cast<std::int64_t>(scores_.size()), fields.where(),
            ": model.unk_id ", unknown_.id, " is not in the vocabulary");
    unknown_score_ = lowest - 10.0;
  }

  void encode(std::string_view piece, std::vector<std::int32_t>& ids) const override {
    struct Best {
      double score = -std::numeric_limits<double>::infinity();
      std::size_t from = 0;
      std::int32_t id = kNone;
    };
    std::vector<Best> best(piece.size() + 1);
    best[0].score = 0;
    for (std::size_t begin = 0; begin < piece.size();) {
      const std::size_t character = std::min(unicode::length_from_first(piece[begin]), piece.size() - begin);
      const double score = best[begin].score;
      auto improve = [&](std::size_t end, double more, std::int32_t id) {
        if (score + more > best[end].score) best[end] = {score + more, begin, id};
      };
      bool single = false;
      for (std::size_t size = 1; size <= std::min(longest_, piece.size() - begin); ++size) {
        const auto id = vocabulary_.find(std::string(piece.substr(begin, size)));
        if (!id || static_cast<std::size_t>(*id) >= scores_.size() || *id == unknown_.id) continue;
        improve(begin + size, scores_[static_cast<std::size_t>(*id)], *id);
        single = single || size == character;
      }
      if (!single) improve(begin + character, unknown_score_, kNone);
      begin += character;
    }
    std::vector<std::pair<std::size_t, std::size_t>> path;
    for (std::size_t end = piece.size(); end > 0; end = best[end].from) path.emplace_back(best[end].from, end);
    for (auto step = path.rbegin(); step != path.rend(); ++step) {
      const std::int32_t id = best[step->second].id;
      if (id != kNone) {
        ids.push_back(id);
      } else {
        add_unknown(unknown_, piece.substr(step->first, step->second - step->first), ids);
      }
    }
  }

 private:
  const Vocabulary& vocabulary_;
  std::vector<double> scores_;
  std::size_t longest_ = 1;
  Unknown unknown_;
  double unknown_score_ = 0;
};

}  // namespace

std::unique_ptr<TokenModel> make_token_model(const Json& object, const std::string& where, Vocabulary& vocabulary) {
  const JsonFields fields(object, where);
  std::string type = fields.text({"type"}, "");
  if (type.empty())
    type = fields.has("merges") ? "BPE" : (fields.has("unk_id") ? "Unigram" : "WordPiece");  // older files
  if (type == "BPE") return std::make_unique<Bpe>(fields, vocabulary);
  if (type == "WordPiece") return std::make_unique<WordPiece>(fields, vocabulary);
  if (type == "Unigram") return std::make_unique<Unigram>(fields, vocabulary);
  fail(where, ": model \"", type, "\" is not supported; supported: BPE, WordPiece, Unigram");
}

}  // namespace rootdk
