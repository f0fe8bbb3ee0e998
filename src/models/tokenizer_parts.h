#pragma once

// The steps of a tokenizer's pipeline, each made from its JSON object. Shared by the tokenizer's source files.

#include "models/json_fields.h"
#include "models/tokenizer.h"

namespace rootdk {

inline const std::string kSpaceMark = "\xE2\x96\x81";  // U+2581, what sentencepiece writes for a space

void add_normalizers(const Json& object, const std::string& where, std::vector<TextStep>& into);
void add_splits(const Json& object, const std::string& where, std::vector<SplitStep>& into);
std::unique_ptr<TokenModel> make_token_model(const Json& object, const std::string& where, Vocabulary& vocabulary);
TokensStep make_decoder(const Json& object, const std::string& where);

// Byte-level tokens: each byte stands as one printable character.
const std::vector<std::string>& byte_characters();       // by byte
std::string bytes_of_characters(std::string_view text);  // back; other characters stand for themselves

std::string replace_all(std::string text, std::string_view from, std::string_view to);

}  // namespace rootdk
