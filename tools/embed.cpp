// rootdk embed MODEL --text FILE: a vector for each line of a text.

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/check.h"
#include "models/builtin.h"
#include "models/embed.h"
#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/options.h"
#include "tools/text_file.h"

namespace rootdk::tools {
namespace {

struct EmbedVerb {
  std::string model, text, out, pooling;
  bool raw = false;
  std::optional<WeightFormat> weights;
  DType activations = DType::f32;
  int threads = 0;
};

std::vector<std::string> lines_of(const std::string& path) {
  std::istringstream file(read_text_file(path));
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    if (line.ends_with('\r')) line.pop_back();
    lines.push_back(line);
  }
  require(!lines.empty(), path, ": has no lines");
  return lines;
}

// Errors name the file.
Tensor embed_lines(const LoadedModel& loaded, const std::vector<std::string>& lines, const EmbedParams& params,
                   const std::string& file, std::int64_t* truncated) {
  try {
    return embed_texts(loaded, lines, params, truncated);
  } catch (const Error& error) {
    throw Error(error.kind(), file + ": " + error.what());
  }
}

void run_embed(const EmbedVerb& options) {
  Executor* executor = options.threads > 0 ? &shared_executor(options.threads) : nullptr;
  const LoadedModel loaded = LoadedModel::load(
      options.model, {.weights = options.weights, .activations = options.activations, .executor = executor});
  const std::vector<std::string> lines = lines_of(options.text);
  EmbedParams params{.normalise = !options.raw, .executor = executor};
  params.pooling = options.pooling.empty()    ? stored_pooling(model_folder(options.model))
                   : options.pooling == "cls" ? Pooling::first_token
                                              : Pooling::mean;
  params.max_tokens = stored_max_tokens(model_folder(options.model));
  std::int64_t truncated = 0;
  const Tensor vectors = embed_lines(loaded, lines, params, options.text, &truncated);
  if (truncated > 0) {
    std::fprintf(stderr, "rootdk: %lld of %zu lines are longer than the model's %lld tokens and lost their end\n",
                 static_cast<long long>(truncated), lines.size(), static_cast<long long>(longest_text(loaded, params)));
  }
  if (!options.out.empty()) {
    const NamedTensor tensor{"embeddings", vectors};
    write_safetensors(options.out, {&tensor, 1});
    std::printf("%s: %s\n", options.out.c_str(), describe(vectors).c_str());
    return;
  }
  for (std::int64_t i = 0; i < vectors.size(0); ++i) {
    const float* row = vectors.view().as<float>() + i * vectors.size(1);
    const nlohmann::ordered_json line = {{"index", i}, {"embedding", std::vector<float>(row, row + vectors.size(1))}};
    std::puts(line.dump().c_str());
  }
}

}  // namespace

void add_embed_command(Command& program) {
  Command* verb = program.add_subcommand("embed", "A vector for each line of a text, from an encoder");
  auto options = std::make_shared<EmbedVerb>();
  verb->add_option("MODEL", options->model, "Folder with config.json, model.safetensors and tokenizer.json")
      ->required();
  verb->add_option("--text", options->text, "A text a line")->required()->type_name("FILE");
  verb->add_option("--out", options->out, "safetensors to write; else lines of JSON are printed")->type_name("FILE");
  verb->add_option("--pooling", options->pooling,
                   "Over all tokens, or the first (default: what 1_Pooling/config.json says, or mean)")
      ->one_of({"mean", "cls"});
  verb->add_flag("--raw", options->raw, "Leave the length of the vectors as it is (default: 1)");
  add_weights_option(*verb, options->weights, "Make the weights smaller as they are loaded");
  add_activations_option(*verb, options->activations);
  add_threads_option(*verb, options->threads);
  verb->callback([options] { run_embed(*options); });
}

}  // namespace rootdk::tools
