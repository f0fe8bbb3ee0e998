#pragma once

// Tokenizers from a transformers tokenizer.json: byte-level BPE (GPT-2, Llama 3, Qwen), BPE with byte fallback (Llama
// 2, Gemma), WordPiece (BERT) and Unigram (T5). The file describes a pipeline, and each step here is one step there:
//     added tokens | normalizer -> pre-tokenizer -> model | post-processor          decoder

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace rootdk {

// Ids and texts of the tokens.
struct Vocabulary {
  std::vector<std::string> tokens;  // by id; ids that are not used are empty
  std::unordered_map<std::string, std::int32_t> ids;

  void add(const std::string& token, std::int32_t id);
  std::optional<std::int32_t> find(const std::string& token) const;
};

// The steps, as functions. A text step maps a whole text; a split step maps one piece to several.
using TextStep = std::function<std::string(std::string)>;
using SplitStep = std::function<std::vector<std::string>(std::string, bool first)>;  // first: at the text's beginning
using TokensStep = std::function<std::vector<std::string>(std::vector<std::string>)>;

// Turns one piece into ids.
class TokenModel {
 public:
  virtual ~TokenModel() = default;
  virtual void encode(std::string_view piece, std::vector<std::int32_t>& ids) const = 0;
};

class Tokenizer {
 public:
  // Throw rootdk::Error that names the part that is not supported, and what is.
  static Tokenizer parse(std::string_view json_text, const std::string& where);
  static Tokenizer load(const std::filesystem::path& folder);  // its tokenizer.json

  // Text must be valid UTF-8. special: with what the post-processor adds (<s>, [CLS], ...).
  std::vector<std::int32_t> encode(std::string_view text, bool special = true) const;
  // Bytes that do not form a character become U+FFFD. Special tokens are left out unless asked for.
  std::string decode(std::span<const std::int32_t> ids, bool with_special = false) const;

  std::int64_t vocab_size() const { return static_cast<std::int64_t>(vocabulary_->tokens.size()); }
  std::optional<std::int32_t> find(const std::string& token) const { return vocabulary_->find(token); }
  const std::string& token(std::int32_t id) const;

 private:
  struct AddedToken {
    std::string content;
    std::int32_t id = 0;
    bool special = false, strip_left = false, strip_right = false;
  };

  void encode_text(std::string_view text, bool first, std::vector<std::int32_t>& ids) const;
  const AddedToken* added_at(std::string_view text) const;

  std::unique_ptr<Vocabulary> vocabulary_ = std::make_unique<Vocabulary>();  // the model refers to it
  std::vector<AddedToken> added_;                                            // longest first
  std::vector<bool> special_;                                                // by id
  std::vector<TextStep> normalizers_;
  std::vector<SplitStep> splits_;
  std::unique_ptr<TokenModel> model_;
  std::vector<std::int32_t> before_, after_;  // what the post-processor puts around
  TokensStep decoder_;

  friend class TokenizerReader;
};

// Decodes a stream of ids: hands out text as soon as its characters are complete.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, std::vector<std::int32_t> context = {});
  std::string push(std::int32_t id);

 private:
  const Tokenizer& tokenizer_;
  // Tokens are decoded behind a few that were handed out before them: what a token reads depends on its neighbours.
  std::vector<std::int32_t> shown_, waiting_;
};

}  // namespace rootdk
