// rootdk generate MODEL: text from a checkpoint, token by token.

#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/check.h"
#include "models/generate.h"
#include "models/loaded_model.h"
#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/options.h"

namespace rootdk::tools {
namespace {

using OrderedJson = nlohmann::ordered_json;

struct GenerateVerb {
  std::string model, prompt;
  bool has_prompt = false, greedy = false, no_cache = false, stats = false, json = false;
  bool stop_at_end = false, ignore_end = false;
  std::vector<std::int32_t> ids;
  std::int64_t max_new = 64;
  std::optional<std::int64_t> top_k;
  std::optional<double> temperature, top_p;
  std::uint64_t seed = 0;
  int threads = 0;
};

// Tokens a second in stretches of eight new tokens, by the position of the first.
OrderedJson speed_over_position(const Generation& generation) {
  constexpr std::size_t kStretch = 8;
  OrderedJson speeds = OrderedJson::array();
  const std::size_t first = generation.ids.size() - generation.step_seconds.size();
  for (std::size_t i = 0; i < generation.step_seconds.size(); i += kStretch) {
    double seconds = 0;
    const std::size_t end = std::min(i + kStretch, generation.step_seconds.size());
    for (std::size_t j = i; j < end; ++j) seconds += generation.step_seconds[j];
    speeds.push_back(
        {{"position", first + i}, {"tokens_per_second", seconds > 0 ? static_cast<double>(end - i) / seconds : 0.0}});
  }
  return speeds;
}

// What each layer's softmax did over the finished sequence: the largest logit and the mean entropy of its rows.
OrderedJson layer_statistics(const Transformer& model, const std::vector<std::int32_t>& prompt,
                             const Generation& generation, Executor* executor) {
  Context context{.executor = executor};
  ModelInput input{.ids = generation.ids};
  if (model.config().encoder) {
    input.ids = prompt;
    input.decoder_ids = generation.ids;
  }
  if (model.config().max_position > 0 &&
      static_cast<std::int64_t>(generation.ids.size()) > model.config().max_position) {
    (model.config().encoder ? input.decoder_ids : input.ids).pop_back();  // the last token was never read
  }
  const ModelResult result = model.forward(context, input, {.stats = true, .last_only = true});
  OrderedJson layers = OrderedJson::array();
  for (const AttentionCapture& capture : result.attention) {
    float largest = -INFINITY;
    double entropy = 0;
    for (const float logit : capture.max_logit.values<float>()) largest = std::max(largest, logit);
    for (const float nats : capture.entropy.values<float>()) entropy += nats;
    layers.push_back(
        {{"max_logit", largest}, {"mean_entropy", entropy / static_cast<double>(capture.entropy.elements())}});
  }
  return layers;
}

void print_statistics(const OrderedJson& report) {
  std::printf("\nspeed over position (tokens a second):\n");
  for (const auto& point : report["speed_over_position"]) {
    std::printf("  from %5lld  %10.1f\n", point["position"].get<long long>(), point["tokens_per_second"].get<double>());
  }
  std::printf("layer  max logit  mean entropy (nats)\n");
  int layer = 0;
  for (const auto& entry : report["layers"]) {
    std::printf("%5d  %9.3f  %12.3f\n", layer++, entry["max_logit"].get<double>(), entry["mean_entropy"].get<double>());
  }
}

void run_generate(const GenerateVerb& options) {
  require(options.has_prompt != !options.ids.empty(), "generate: give either --prompt or --ids");
  const LoadedModel loaded = LoadedModel::load(options.model);
  const Transformer& model = loaded.model;
  const std::optional<Tokenizer>& tokenizer = loaded.tokenizer;
  const std::vector<std::int32_t> prompt = options.has_prompt ? loaded.ids_of(options.prompt) : options.ids;
  const bool sampled = options.temperature || options.top_k || options.top_p;
  const GenerateParams params{.max_new = options.max_new,
                              .sampling = {.greedy = !sampled,
                                           .temperature = options.temperature.value_or(1.0),
                                           .top_k = options.top_k.value_or(0),
                                           .top_p = options.top_p.value_or(1.0),
                                           .seed = options.seed},
                              // Raw ids ask for an exact number of tokens; text ends where the model ends it.
                              .stop_at_end = (options.has_prompt || options.stop_at_end) && !options.ignore_end,
                              .cache = !options.no_cache,
                              .executor = options.threads > 0 ? &shared_executor(options.threads) : nullptr};
  const bool decoder_only = !model.config().encoder.has_value();
  std::optional<StreamDecoder> stream;
  if (tokenizer) stream.emplace(*tokenizer, decoder_only ? prompt : std::vector<std::int32_t>());
  Generator generator(model, prompt, params);
  if (!options.json && options.has_prompt && decoder_only) std::fputs(options.prompt.c_str(), stdout);
  while (const std::optional<std::int32_t> id = generator.next()) {
    if (options.json) continue;
    if (stream) {
      std::fputs(stream->push(*id).c_str(), stdout);
    } else {
      std::printf("%d ", *id);
    }
    std::fflush(stdout);
  }
  const Generation& generation = generator.so_far();

  const auto first_new = generation.ids.end() - generation.new_tokens;
  const std::vector<std::int32_t> fresh(first_new, generation.ids.end());
  OrderedJson report = {{"ids", generation.ids},
                        {"new_ids", fresh},
                        {"prompt_ids", prompt},
                        {"text", nullptr},
                        {"cache", params.cache},
                        {"new_tokens", generation.new_tokens},
                        {"prompt_seconds", generation.prompt_seconds},
                        {"tokens_per_second", generation.tokens_per_second()}};
  if (tokenizer) {
    report["text"] = tokenizer->decode(generation.ids);
    report["new_text"] = tokenizer->decode(fresh);
  }
  if (options.stats) {
    report["speed_over_position"] = speed_over_position(generation);
    report["layers"] = layer_statistics(model, prompt, generation, params.executor);
  }
  if (options.json) {
    std::puts(report.dump(2).c_str());
    return;
  }
  std::printf("\n[%lld tokens, %.1f a second, cache %s]\n", static_cast<long long>(generation.new_tokens),
              generation.tokens_per_second(), params.cache ? "on" : "off");
  if (options.stats) print_statistics(report);
}

}  // namespace

void add_generate_command(Command& program) {
  Command* verb = program.add_subcommand("generate", "Continue a text with a checkpoint, token by token");
  auto options = std::make_shared<GenerateVerb>();
  verb->add_option("MODEL", options->model, "Folder with config.json, model.safetensors and tokenizer.json; or builtin")
      ->required();
  Option* prompt = verb->add_option("--prompt", options->prompt, "Text to continue")->type_name("TEXT");
  add_numbers_option(*verb, "--ids", options->ids, "Token ids to continue, instead of text")->excludes(prompt);
  verb->add_option("--max-new", options->max_new, "Tokens to add at most")->show_default()->type_name("N");
  Option* greedy = verb->add_flag("--greedy", options->greedy,
                                  "Always the likeliest token (the default unless a sampling option is given)");
  verb->add_option("--temperature", options->temperature, "Sample with this temperature")
      ->excludes(greedy)
      ->type_name("T");
  verb->add_option("--top-k", options->top_k, "Sample from the k likeliest; 0: from all")
      ->excludes(greedy)
      ->type_name("K");
  verb->add_option("--top-p", options->top_p, "Sample from the likeliest that together reach p")
      ->excludes(greedy)
      ->type_name("P");
  add_seed_option(*verb, options->seed, "Of the sampling");
  verb->add_flag("--no-cache", options->no_cache, "Compute the whole sequence anew for each token");
  Option* stop_at_end =
      verb->add_flag("--stop-at-end", options->stop_at_end, "End at the model's end token (the default with --prompt)");
  verb->add_flag("--ignore-end", options->ignore_end, "Go on behind the model's end token (the default with --ids)")
      ->excludes(stop_at_end);
  verb->add_flag("--stats", options->stats, "Speed over position, and each layer's max logit and entropy");
  add_threads_option(*verb, options->threads);
  verb->add_flag("--json", options->json, "Print JSON");
  verb->callback([options, prompt] {
    options->has_prompt = prompt->count() > 0;
    run_generate(*options);
  });
}

}  // namespace rootdk::tools
