#include "models/builtin.h"

#include <dlfcn.h>

#include <cstdlib>

#include "core/check.h"
#include "models/generate.h"
#include "models/loaded_model.h"

namespace rootdk {

namespace {

// The file that holds this code: the program, or the shared library in somebody else's program.
std::filesystem::path own_file() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&builtin_model_folder), &info) == 0 || !info.dli_fname) return {};
  std::error_code error;
  return std::filesystem::canonical(info.dli_fname, error);
}

}  // namespace

std::filesystem::path builtin_model_folder() {
  namespace fs = std::filesystem;
  std::vector<fs::path> places;
  if (const char* named = std::getenv("ROOTDK_BUILTIN_MODEL")) {
    places.emplace_back(named);
  } else {
    std::error_code error;
    // prefix/bin/rootdk, prefix/lib/librootdk_models.so, or prefix/lib/x86_64-linux-gnu/librootdk_models.so
    for (const fs::path& file : {own_file(), fs::read_symlink("/proc/self/exe", error)}) {
      if (file.empty()) continue;
      const fs::path prefix = file.parent_path().parent_path();
      for (const fs::path& place : {prefix, prefix.parent_path()}) {
        places.push_back(place / "share" / "rootdk" / "builtin");
      }
    }
    places.emplace_back(ROOTDK_SOURCE_MODEL);
  }
  std::string looked;
  for (const fs::path& place : places) {
    if (fs::exists(place / "config.json")) return place;
    looked.append("\n  ").append(place.string());
  }
  fail("the built-in model was not found in", looked);
}

std::filesystem::path model_folder(const std::string& name) {
  return name == "builtin" ? builtin_model_folder() : std::filesystem::path(name);
}

std::string builtin_continuation(const std::string& prompt, std::int64_t max_new, std::uint64_t seed,
                                 const std::function<void(std::string_view)>& on_text) {
  const LoadedModel loaded = LoadedModel::load("builtin");
  const std::vector<std::int32_t> ids = loaded.ids_of(prompt);
  StreamDecoder stream(loaded.require_tokenizer(), ids);
  std::string text;
  generate(loaded.model, ids, {.max_new = max_new, .sampling = {.greedy = false, .temperature = 0.8, .seed = seed}},
           [&](std::int32_t id) {
             const std::string part = stream.push(id);
             if (on_text) on_text(part);
             text += part;
             return true;
           });
  return text;
}

}  // namespace rootdk
