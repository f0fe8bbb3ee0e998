#include "models/builtin.h"

#include <cstdlib>

#include "core/check.h"
#include "models/checkpoint.h"
#include "models/generate.h"
#include "models/tokenizer.h"

namespace rootdk {

std::filesystem::path builtin_model_folder() {
  namespace fs = std::filesystem;
  std::vector<fs::path> places;
  if (const char* named = std::getenv("ROOTDK_BUILTIN_MODEL")) {
    places.emplace_back(named);
  } else {
    std::error_code error;
    const fs::path program = fs::read_symlink("/proc/self/exe", error);
    if (!error) places.push_back(program.parent_path().parent_path() / "share" / "rootdk" / "builtin");
    places.emplace_back(ROOTDK_SOURCE_MODEL);
  }
  std::string looked;
  for (const fs::path& place : places) {
    if (fs::exists(place / "config.json")) return place;
    looked.append("\n  ").append(place.string());
  }
  fail("the built-in model was not found in", looked);
}

std::string builtin_continuation(const std::string& prompt, std::int64_t max_new, std::uint64_t seed,
                                 const std::function<void(std::string_view)>& on_text) {
  const std::filesystem::path folder = builtin_model_folder();
  const Transformer model = load_model(folder);
  const Tokenizer tokenizer = Tokenizer::load(folder);
  const std::vector<std::int32_t> ids = tokenizer.encode(prompt);
  StreamDecoder stream(tokenizer, ids);
  std::string text;
  generate(model, ids, {.max_new = max_new, .sampling = {.greedy = false, .temperature = 0.8, .seed = seed}},
           [&](std::int32_t id) {
             const std::string part = stream.push(id);
             if (on_text) on_text(part);
             text += part;
             return true;
           });
  return text;
}

}  // namespace rootdk
