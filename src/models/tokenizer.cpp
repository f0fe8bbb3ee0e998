#include "models/tokenizer.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>

#include "models/text_budget.h"
#include "models/tokenizer_parts.h"
#include "models/unicode.h"

namespace rootdk {

void Vocabulary::add(const std::string& token, std::int32_t id) {
  const auto place = static_cast<std::size_t>(id);
  if (tokens.size() <= place) tokens.resize(place + 1);
  tokens[place] = token;
  ids[token] = id;
}

std::optional<std::int32_t> Vocabulary::find(const std::string& token) const {
  const auto found = ids.find(token);
  return found == ids.end() ? std::nullopt : std::optional(found->second);
}

// Builds a tokenizer from the parts of the file.
class TokenizerReader {
 public:
  TokenizerReader(const Json& document, const std::string& where) : fields_(document, where), where_(where) {}

  Tokenizer read() {
    const Json* model = fields_.find({"model"});
    require(model, where_, ": model is missing");
    result_.model_ = make_token_model(*model, where_, vocabulary());
    read_added_tokens();
    if (const Json* normalizer = fields_.find({"normalizer"}))
      add_normalizers(*normalizer, where_, result_.normalizers_);
    if (const Json* splits = fields_.find({"pre_tokenizer"})) add_splits(*splits, where_, result_.splits_);
    if (const Json* post = fields_.find({"post_processor"})) read_post_processor(*post);
    if (const Json* decoder = fields_.find({"decoder"})) result_.decoder_ = make_decoder(*decoder, where_);
    return std::move(result_);
  }

 private:
  Vocabulary& vocabulary() { return *result_.vocabulary_; }

  void read_added_tokens() {
    const Json* list = fields_.find({"added_tokens"});
    require(!list || list->is_array(), where_, ": added_tokens must be a list");
    const Json none;
    for (const Json& entry : list ? *list : none) {
      const JsonFields token(entry, where_);
      const std::int64_t id = token.integer({"id"});
      require(id >= 0 && id < (1 << 24), where_, ": added token id ", id, " is not between 0 and ", 1 << 24);
      Tokenizer::AddedToken added{.content = token.text({"content"}, ""),
                                  .id = static_cast<std::int32_t>(id),
                                  .special = token.boolean({"special"}, false),
                                  .strip_left = token.boolean({"lstrip"}, false),
                                  .strip_right = token.boolean({"rstrip"}, false)};
      require(!added.content.empty(), where_, ": added token ", id, " is empty");
      vocabulary().add(added.content, added.id);
      if (added.special) {
        if (result_.special_.size() <= static_cast<std::size_t>(id))
          result_.special_.resize(static_cast<std::size_t>(id) + 1);
        result_.special_[static_cast<std::size_t>(id)] = true;
      }
      result_.added_.push_back(std::move(added));
    }
    std::stable_sort(result_.added_.begin(), result_.added_.end(),
                     [](const auto& a, const auto& b) { return a.content.size() > b.content.size(); });
  }

  std::int32_t id_of(const std::string& token) const {
    const auto id = result_.vocabulary_->find(token);
    require(id.has_value(), where_, ": the post-processor's token \"", token, "\" is not in the vocabulary");
    return *id;
  }

  void read_post_processor(const Json& object) {
    const JsonFields post(object, where_);
    const std::string type = post.text({"type"}, "");
    if (type == "Sequence") {
      const Json* list = post.find({"processors"});
      require(list && list->is_array(), where_, ": Sequence needs a list of processors");
      for (const Json& step : *list) read_post_processor(step);
    } else if (type == "TemplateProcessing") {
      read_template(post);
    } else if (type == "BertProcessing" || type == "RobertaProcessing") {
      result_.before_.push_back(id_of(pair_name(post, "cls")));
      result_.after_.push_back(id_of(pair_name(post, "sep")));
    } else {
      require(
          type == "ByteLevel", where_, ": post-processor \"", type,
          "\" is not supported; supported: Sequence, TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel");
    }
  }

  std::string pair_name(const JsonFields& post, std::string_view name) const {
    const Json* pair = post.find({name});
    require(pair && pair->is_array() && pair->size() == 2 && (*pair)[0].is_string(), where_, ": post-processor's ",
            name, " must be a token and its id");
    return (*pair)[0].get<std::string>();
  }

  void read_template(const JsonFields& post) {
    const Json* parts = post.find({"single"});
    require(parts && parts->is_array(), where_, ": TemplateProcessing needs a list named single");
    bool behind = false;
    for (const Json& part : *parts) {
      require(part.is_object(), where_, ": a part of the template must be an object, not ", JsonFields::shown(part));
      if (part.contains("Sequence")) {
        behind = true;
        continue;
      }
      const Json* special = JsonFields(part, where_).find({"SpecialToken"});
      require(special, where_, ": a part of the template is neither Sequence nor SpecialToken");
      (behind ? result_.after_ : result_.before_).push_back(id_of(JsonFields(*special, where_).text({"id"}, "")));
    }
  }

  JsonFields fields_;
  std::string where_;
  Tokenizer result_;
};

Tokenizer Tokenizer::parse(std::string_view json_text, const std::string& where) {
  const Json document = parse_json(json_text, where);
  return TokenizerReader(document, where).read();
}

Tokenizer Tokenizer::load(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "tokenizer.json";
  constexpr std::uintmax_t kLargest = 256u << 20;
  require(std::filesystem::is_regular_file(path), path.string(), ": not found");
  const std::uintmax_t size = std::filesystem::file_size(path);
  require(size <= kLargest, path.string(), ": ", size, " bytes are too many for a tokenizer");
  std::ifstream file(path, std::ios::binary);
  require(file.good(), path.string(), ": cannot be opened");
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return parse(text, path.string());
}

const std::string& Tokenizer::token(std::int32_t id) const {
  require(id >= 0 && id < vocab_size(), "tokenizer: id ", id, " is outside the ", vocab_size(), " tokens");
  return vocabulary_->tokens[static_cast<std::size_t>(id)];
}

const Tokenizer::AddedToken* Tokenizer::added_at(std::string_view text) const {
  for (const AddedToken& token : added_) {
    if (text.starts_with(token.content)) return &token;
  }
  return nullptr;
}

void Tokenizer::encode_text(std::string_view text, bool first, std::vector<std::int32_t>& ids) const {
  if (text.empty()) return;
  std::string normal(text);
  for (const TextStep& step : normalizers_) {
    normal = step(std::move(normal));
    TextBudget::require_size(normal.size());
    TextBudget::require_time();
  }
  std::vector<std::string> pieces{std::move(normal)};
  for (const SplitStep& split : splits_) {
    std::vector<std::string> finer;
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      for (std::string& part : split(std::move(pieces[i]), first && i == 0)) {
        TextBudget::require_size(bytes += part.size());
        finer.push_back(std::move(part));
      }
      if (i % 64 == 0) TextBudget::require_time();
    }
    pieces = std::move(finer);
  }
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    model_->encode(pieces[i], ids);
    if (i % 64 == 0) TextBudget::require_time();
  }
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool special) const {
  const std::size_t invalid = unicode::find_invalid(text);
  require(invalid == std::string_view::npos, "tokenizer: the text is not valid UTF-8 at byte ", invalid);
  const TextBudget budget(text.size());
  std::vector<std::int32_t> ids;
  if (special) ids = before_;
  std::size_t begin = 0;
  bool first = true;
  for (std::size_t i = 0; i < text.size();) {
    const AddedToken* token = added_at(text.substr(i));
    if (!token) {
      i += unicode::length_from_first(text[i]);
      continue;
    }
    std::size_t end = i;
    while (token->strip_left && end > begin && text[end - 1] == ' ') --end;
    encode_text(text.substr(begin, end - begin), first, ids);
    ids.push_back(token->id);
    i += token->content.size();
    while (token->strip_right && i < text.size() && text[i] == ' ') ++i;
    begin = i;
    first = false;
  }
  encode_text(text.substr(begin), first, ids);
  if (special) ids.insert(ids.end(), after_.begin(), after_.end());
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool with_special) const {
  std::vector<std::string> tokens;
  std::size_t bytes = 0;
  for (const std::int32_t id : ids) {
    const std::string& text = token(id);
    bytes += text.size();
    const bool special = static_cast<std::size_t>(id) < special_.size() && special_[static_cast<std::size_t>(id)];
    if (!special || with_special) tokens.push_back(text);
  }
  const TextBudget budget(bytes);
  std::string text;
  if (decoder_) {
    for (const std::string& part : decoder_(std::move(tokens))) text += part;
  } else {
    for (std::size_t i = 0; i < tokens.size(); ++i) text += (i ? " " : "") + tokens[i];
  }
  return unicode::repaired(text);
}

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, std::vector<std::int32_t> context)
    : tokenizer_(tokenizer), shown_(std::move(context)) {
  constexpr std::size_t kContext = 8;
  if (shown_.size() > kContext) shown_.erase(shown_.begin(), shown_.end() - kContext);
}

std::string StreamDecoder::push(std::int32_t id) {
  // What is kept changes last: a push that throws can be repeated.
  std::vector<std::int32_t> waiting = waiting_;
  waiting.push_back(id);
  std::vector<std::int32_t> both = shown_;
  both.insert(both.end(), waiting.begin(), waiting.end());
  const std::string before = tokenizer_.decode(shown_), text = tokenizer_.decode(both);
  // A character whose bytes are not all here yet ends in U+FFFD: wait for the rest.
  if (text.size() <= before.size() || text.ends_with("\xEF\xBF\xBD")) {
    waiting_ = std::move(waiting);
    return {};
  }
  std::string added = text.substr(before.size());
  shown_ = std::move(waiting);
  waiting_.clear();
  return added;
}

}  // namespace rootdk
