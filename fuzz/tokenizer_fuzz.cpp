// Any bytes as tokenizer.json, and what it makes of a few texts: tokens or rootdk::Error, never anything else.

#include <cstdint>
#include <string_view>

#include "models/tokenizer.h"
#include "rootdk/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const rootdk::Tokenizer tokenizer = rootdk::Tokenizer::parse(text, "tokenizer.json");
    for (const std::string_view sample : {std::string_view("Hello, world's  \xC3\xA9\n12"), text.substr(0, 64)}) {
      try {
        tokenizer.decode(tokenizer.encode(sample));
      } catch (const rootdk::Error&) {
      }
    }
  } catch (const rootdk::Error&) {
  }
  return 0;
}
