// rootdk generate MODEL: text from a checkpoint, token by token.

#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/check.h"
#include "models/beam.h"
#include "models/stop_strings.h"
#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/generate.h"
#include "tools/heap.h"
#include "tools/options.h"

namespace rootdk::tools {
namespace {

using OrderedJson = nlohmann::ordered_json;

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

// The text of new tokens, which depends on what stands before them: a word behind others begins with a space.
std::string text_behind(const Tokenizer& tokenizer, std::span<const std::int32_t> before,
                        std::span<const std::int32_t> fresh) {
  StreamDecoder stream(tokenizer, {before.begin(), before.end()});
  std::string text;
  for (const std::int32_t id : fresh) text += stream.push(id);
  return text;
}

void print_report(const OrderedJson& report) {
  std::puts(report.dump(2, ' ', false, OrderedJson::error_handler_t::replace).c_str());
}

// The likeliest continuations, with their scores.
void run_beams(const GenerateVerb& options, const LoadedModel& loaded, const std::vector<std::int32_t>& prompt,
               const GenerateParams& params) {
  OrderedJson report = OrderedJson::array();
  const std::vector<std::int32_t> before = loaded.model.config().encoder ? std::vector<std::int32_t>() : prompt;
  for (const BeamResult& result : beam_search(loaded.model, prompt,
                                              {.beams = options.beams,
                                              .max_new = params.max_new,
                                              .length_penalty = options.length_penalty,
                                              .stop_at_end = params.stop_at_end,
                                              .cache_type = params.cache_type,
                                              .executor = params.executor})) {
    const std::vector<std::int32_t> fresh(result.ids.end() - result.new_tokens, result.ids.end());
    OrderedJson text;
    if (loaded.tokenizer) text = text_behind(*loaded.tokenizer, before, fresh);
    report.push_back(
        {{"new_ids", fresh}, {"new_text", text}, {"log_probability", result.log_probability}, {"score", result.score}});
  }
  if (options.json) return print_report(report);
  for (const auto& beam : report) {
    std::printf("%8.3f  %s\n", beam["score"].get<double>(),
                loaded.tokenizer ? beam["new_text"].get<std::string>().c_str() : beam["new_ids"].dump().c_str());
  }
}

void run_generate(const GenerateVerb& options) {
  keep_freed_memory();
  if (!options.prompts.empty()) return run_prompts(options);
  require(options.has_prompt != !options.ids.empty(), "generate: give one of --prompt, --ids and --prompts");
  const LoadedModel loaded = options.load();
  std::optional<LoadedModel> draft;
  const Transformer& model = loaded.model;
  const std::optional<Tokenizer>& tokenizer = loaded.tokenizer;
  const std::vector<std::int32_t> prompt = options.has_prompt ? loaded.ids_of(options.prompt) : options.ids;
  // Raw ids ask for an exact number of tokens; text ends where the model ends it.
  GenerateParams params = options.params(options.has_prompt);
  if (!options.draft.empty()) {
    draft.emplace(LoadedModel::load(
        options.draft,
        {.activations = options.activations.value_or(generation_activations()), .executor = params.executor}));
    params.draft = &draft->model;
    params.draft_tokens = options.draft_tokens;
  }
  if (options.beams > 0) return run_beams(options, loaded, prompt, params);
  require(options.stop.empty() || tokenizer, "generate: --stop needs a tokenizer.json");
  StopStrings stop(options.stop);
  const bool decoder_only = !model.config().encoder.has_value();
  std::optional<StreamDecoder> stream;
  if (tokenizer) stream.emplace(*tokenizer, decoder_only ? prompt : std::vector<std::int32_t>());
  Generator generator(model, prompt, params);
  if (!options.json && options.has_prompt && decoder_only) std::fputs(options.prompt.c_str(), stdout);
  std::string streamed;
  while (!stop.stopped()) {
    const std::optional<std::int32_t> id = generator.next();
    if (!id) break;
    const std::string text = stream ? stop.push(stream->push(*id)) : std::to_string(*id) + " ";
    streamed += text;
    if (options.json) continue;
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  }
  const std::string held = stop.finish();
  streamed += held;
  if (!options.json) std::fputs(held.c_str(), stdout);
  const Generation& generation = generator.so_far();
  tell_about_length(model.config(), generation, params.max_new);

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
    report["text"] =
        stop.stopped() ? (decoder_only ? tokenizer->decode(prompt) : "") + streamed : tokenizer->decode(generation.ids);
    report["new_text"] = streamed;
  }
  if (params.draft) {
    report["drafted"] = generation.drafted;
    report["accepted"] = generation.accepted;
  }
  if (options.stats) {
    report["speed_over_position"] = speed_over_position(generation);
    report["layers"] = layer_statistics(model, prompt, generation, params.executor);
  }
  if (options.json) return print_report(report);
  std::printf("\n[%lld tokens, %.1f a second, cache %s]\n", static_cast<long long>(generation.new_tokens),
              generation.tokens_per_second(), params.cache ? "on" : "off");
  if (options.stats) print_statistics(report);
}

}  // namespace

void tell_about_length(const TransformerConfig& config, const Generation& generation, std::int64_t max_new,
                       const std::string& where) {
  const auto length = static_cast<long long>(generation.ids.size());
  const std::string from = where.empty() ? "rootdk: " : "rootdk: " + where + ": ";
  if (config.max_position > 0 && length > config.max_position && generation.new_tokens < max_new) {
    std::fprintf(stderr, "%sended after %lld of %lld tokens: the model has %lld positions\n", from.c_str(),
                 static_cast<long long>(generation.new_tokens), static_cast<long long>(max_new),
                 static_cast<long long>(config.max_position));
  } else if (config.trained_context > 0 && length > config.trained_context) {
    std::fprintf(stderr, "%sthe text has %lld tokens, and the model was trained on %lld at a time\n", from.c_str(),
                 length, static_cast<long long>(config.trained_context));
  }
}

void add_generate_command(Command& program) {
  Command* verb = program.add_subcommand("generate", "Continue a text with a checkpoint, token by token");
  auto options = std::make_shared<GenerateVerb>();
  verb->add_option("MODEL", options->model, "Folder with config.json, model.safetensors and tokenizer.json; or builtin")
      ->required();
  Option* prompt = verb->add_option("--prompt", options->prompt, "Text to continue")->type_name("TEXT");
  Option* ids =
      add_numbers_option(*verb, "--ids", options->ids, "Token ids to continue, instead of text")->excludes(prompt);
  Option* prompts =
      verb->add_option("--prompts", options->prompts,
                       "Many at once: a line of JSON each, a text or {\"prompt\": ...} or {\"ids\": [...]}")
          ->excludes(prompt)
          ->excludes(ids)
          ->type_name("FILE");
  verb->add_flag("--stream", options->stream, "With --prompts: a line for each token as it comes")->needs(prompts);
  verb->add_option("--batch", options->batch, "With --prompts: sequences under way at the same time")
      ->needs(prompts)
      ->between(1, 4096)
      ->show_default()
      ->type_name("N");
  verb->add_option("--max-new", options->max_new, "Tokens to add at most")->show_default()->type_name("N");
  Option* greedy = verb->add_flag("--greedy", options->greedy,
                                  "Always the likeliest token (the default unless a sampling option is given)");
  Option* temperature = verb->add_option("--temperature", options->temperature, "Sample with this temperature")
                            ->excludes(greedy)
                            ->type_name("T");
  Option* top_k = verb->add_option("--top-k", options->top_k, "Sample from the k likeliest; 0: from all")
                      ->excludes(greedy)
                      ->type_name("K");
  Option* top_p = verb->add_option("--top-p", options->top_p, "Sample from the likeliest that together reach p")
                      ->excludes(greedy)
                      ->type_name("P");
  Option* min_p =
      verb->add_option("--min-p", options->min_p, "Sample from tokens at least p times as likely as the likeliest")
          ->excludes(greedy)
          ->type_name("P");
  Option* repetition = verb->add_option("--repetition-penalty", options->repetition_penalty,
                                        "Makes tokens that are in the text less likely (above 1)")
                           ->type_name("X");
  Option* stop =
      verb->add_option("--stop", options->stop, "End before this text; may be given several times")->type_name("TEXT");
  add_seed_option(*verb, options->seed, "Of the sampling");
  Option* draft =
      verb->add_option("--draft", options->draft, "A small model of the same vocabulary that proposes tokens")
          ->excludes(prompts)
          ->type_name("MODEL");
  verb->add_option("--draft-tokens", options->draft_tokens, "Tokens that it proposes at once")
      ->needs(draft)
      ->show_default()
      ->type_name("N");
  Option* beams = verb->add_option("--beams", options->beams, "Beam search over so many continuations")
                      ->excludes(prompts)
                      ->excludes(draft)
                      ->between(1, 1024)
                      ->type_name("N");
  verb->add_option("--length-penalty", options->length_penalty, "Of beam search: log probability over length^X")
      ->needs(beams)
      ->show_default()
      ->type_name("X");
  add_weights_option(*verb, options->weights, "Make the weights smaller as they are loaded");
  add_activations_option(*verb, options->activations);
  Option* no_cache = verb->add_flag("--no-cache", options->no_cache, "Compute the whole sequence anew for each token");
  add_cache_option(*verb, options->cache_type)->excludes(no_cache);
  no_cache->excludes(prompts)->excludes(draft)->excludes(beams);
  Option* stop_at_end =
      verb->add_flag("--stop-at-end", options->stop_at_end, "End at the model's end token (the default with --prompt)");
  verb->add_flag("--ignore-end", options->ignore_end, "Continue past the model's end token (the default with --ids)")
      ->excludes(stop_at_end);
  Option* stats =
      verb->add_flag("--stats", options->stats, "Speed over position, and each layer's max logit and entropy")
          ->excludes(prompts);
  for (Option* other : {temperature, top_k, top_p, min_p, repetition, stop, stats}) beams->excludes(other);
  add_threads_option(*verb, options->threads);
  verb->add_flag("--json", options->json, "Print JSON");
  verb->callback([options, prompt] {
    options->has_prompt = prompt->count() > 0;
    run_generate(*options);
  });
}

}  // namespace rootdk::tools
