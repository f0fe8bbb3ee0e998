#include "lab/live/page.h"

#include <cstdint>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "lab/live/assets.h"
#include "lab/live/one_file.h"
#include "lab/report/style.h"
#include "models/builtin.h"
#include "models/checkpoint.h"

namespace rootdk::lab {
namespace {

constexpr std::uintmax_t kLargestModel = std::uintmax_t{64} << 20;  // bytes; a page of 90 MB still opens

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  require(file.good(), path.string(), ": cannot be opened");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// {"name", "context", "files": {name: base64}}
std::string model_json(const std::string& model) {
  namespace fs = std::filesystem;
  const fs::path folder = model_folder(model);
  const TransformerConfig config = load_config(folder);
  require(!config.encoder, "live: ", model, " has an encoder and a decoder; rootdk inspect --report shows it");
  require(fs::exists(folder / "tokenizer.json"), "live: ", model, " has no tokenizer.json, and the page is typed into");
  std::vector<std::string> names = {"config.json", "generation_config.json", "tokenizer.json",
                                    "model.safetensors.index.json"};
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    // expected.safetensors of test fixtures and the like stay out: weights are model.safetensors or its shards.
    if (entry.path().extension() == ".safetensors" && name.starts_with("model")) names.push_back(name);
  }
  std::uintmax_t total = 0;
  for (const std::string& name : names) {
    if (fs::exists(folder / name)) total += fs::file_size(folder / name);
  }
  require(total <= kLargestModel, "live: the files of ", model, " take ", total >> 20,
          " MiB, and a page holds at most ", kLargestModel >> 20, "; rootdk inspect --report shows larger models");
  nlohmann::json files;
  for (const std::string& name : names) {
    if (fs::exists(folder / name)) files[name] = base64(read_file(folder / name));
  }
  return nlohmann::json{{"name", folder.filename().string()}, {"context", config.trained_context}, {"files", files}}
      .dump();
}

}  // namespace

std::string live_page(const std::string& model) {
  return filled(live_template(), {{"style", std::string(kStyle) + std::string(page_style())},
                                  {"glue", inside_script(std::string(live_glue()))},
                                  {"wasm", base64(live_wasm())},
                                  {"model", inside_script(model_json(model))},
                                  {"recorded", inside_script(std::string(live_recorded()))},
                                  {"modules", inside_script(joined_modules(live_modules()))}});
}

}  // namespace rootdk::lab
