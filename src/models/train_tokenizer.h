#pragma once

// Tokenizers made from a text, as tokenizer.json files that Tokenizer::parse (and others) read.

#include <cstdint>
#include <string>
#include <string_view>

namespace rootdk {

// One token for each character of the text, in the order of their code points, behind <unk>.
std::string character_tokenizer_json(std::string_view text);

// Byte-level BPE in GPT-2's way: the 256 bytes, then the most frequent pair of the text again and again (of equals the
// one that compares lower) until vocab_size tokens are there.
std::string bpe_tokenizer_json(std::string_view text, std::int64_t vocab_size);

}  // namespace rootdk
