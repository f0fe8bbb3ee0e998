#pragma once

// What the files of `rootdk generate` share.

#include <optional>
#include <string>
#include <vector>

#include "models/generate.h"
#include "models/loaded_model.h"

namespace rootdk::tools {

struct GenerateVerb {
  std::string model, prompt, prompts, draft;
  bool has_prompt = false, greedy = false, no_cache = false, stats = false, json = false, stream = false;
  bool stop_at_end = false, ignore_end = false;
  std::vector<std::int32_t> ids;
  std::vector<std::string> stop;
  std::int64_t max_new = 64, draft_tokens = 4, beams = 0, batch = 32;  // beams 0: no beam search
  double length_penalty = 1.0;
  std::optional<std::int64_t> top_k;
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<DType> cache_type;
  std::optional<WeightFormat> weights;
  std::optional<DType> activations;
  std::uint64_t seed = 0;
  int threads = 0;

  Executor* executor() const { return threads > 0 ? &shared_executor(threads) : nullptr; }
  LoadedModel load() const {
    return LoadedModel::load(
        model,
        {.weights = weights, .activations = activations.value_or(generation_activations()), .executor = executor()});
  }
  GenerateParams params(bool ends_with_model) const;
};

// Says on standard error where the model's positions ended a text early, or where a text went past what training
// showed. `where` is the line of a file with many prompts.
void tell_about_length(const TransformerConfig& config, const Generation& generation, std::int64_t max_new,
                       const std::string& where = "");

// --prompts FILE: all prompts of a file at once.
void run_prompts(const GenerateVerb& options);

}  // namespace rootdk::tools
