#include "lab/live/page.h"

#include <cstdint>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/check.h"
#include "lab/live/assets.h"
#include "lab/report/style.h"
#include "models/builtin.h"
#include "models/checkpoint.h"

namespace rootdk::lab {
namespace {

constexpr std::uintmax_t kLargestModel = std::uintmax_t{64} << 20;  // bytes; a page of 90 MB still opens

std::string base64(std::string_view bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t word = 0;
    for (std::size_t j = 0; j < 3; ++j) {
      word = word << 8 | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0u);
    }
    for (std::size_t j = 0; j < 4; ++j) text += i + j <= bytes.size() ? kDigits[word >> (18 - 6 * j) & 63] : '=';
  }
  return text;
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  require(file.good(), path.string(), ": cannot be opened");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// The modules as one script: what they import from each other is in scope already.
std::string joined_modules() {
  std::istringstream source{std::string(live_modules())};
  std::string script;
  for (std::string line; std::getline(source, line);) {
    if (line.starts_with("import {")) continue;
    if (line.starts_with("export ")) line.erase(0, 7);
    script.append(line).push_back('\n');
  }
  return script;
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

// Fills {{name}}. Text inside a script element must not close it.
std::string filled(std::string_view pattern, const std::map<std::string_view, std::string>& parts) {
  std::string page;
  while (true) {
    const std::size_t open = pattern.find("{{"), close = pattern.find("}}", open);
    if (open == std::string_view::npos) return page.append(pattern);
    const auto part = parts.find(pattern.substr(open + 2, close - open - 2));
    require(part != parts.end(), "internal: the live page asks for ", pattern.substr(open, close + 2 - open));
    page.append(pattern.substr(0, open)).append(part->second);
    pattern.remove_prefix(close + 2);
  }
}

std::string inside_script(std::string text) {
  for (std::size_t at = 0; (at = text.find("</", at)) != std::string::npos; at += 3) text.replace(at, 2, "<\\/");
  return text;
}

}  // namespace

std::string live_page(const std::string& model) {
  return filled(live_template(), {{"style", std::string(kStyle) + std::string(live_style())},
                                  {"glue", inside_script(std::string(live_glue()))},
                                  {"wasm", base64(live_wasm())},
                                  {"model", inside_script(model_json(model))},
                                  {"recorded", inside_script(std::string(live_recorded()))},
                                  {"modules", inside_script(joined_modules())}});
}

}  // namespace rootdk::lab
