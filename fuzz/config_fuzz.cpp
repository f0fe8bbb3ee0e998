// Any bytes as config.json and generation_config.json: a config or rootdk::Error, never anything else.

#include <cstdint>
#include <string_view>

#include "models/config.h"
#include "rootdk/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    rootdk::TransformerConfig config = rootdk::parse_config(text, "config.json");
    rootdk::apply_generation_config(config, text, "generation_config.json");
  } catch (const rootdk::Error&) {
  }
  return 0;
}
