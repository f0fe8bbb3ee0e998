#include "c_api/status.h"
#include "models/stop_strings.h"
#include "models_api/handles.h"
#include "models_api/interruptible.h"

using namespace rootdk;
using namespace rootdk::models_api;
using rootdk::c_api::guarded;

struct rootdk_generation {
  std::unique_ptr<InterruptibleExecutor> executor;  // of the generator
  Generator generator;
  std::optional<StreamDecoder> stream{};  // where the model has a tokenizer
  std::optional<StopStrings> stop{};      // where some are given
  std::optional<std::string> decoded{};   // of the pending token, where its text has come so far
  std::optional<std::int32_t> pending{};  // drawn, but its text could not be handed out for want of memory
};

namespace {

rootdk_generate_params default_params() {
  const GenerateParams defaults;
  return {.struct_size = sizeof(rootdk_generate_params),
          .max_new = defaults.max_new,
          .greedy = defaults.sampling.greedy,
          .temperature = defaults.sampling.temperature,
          .top_k = defaults.sampling.top_k,
          .top_p = defaults.sampling.top_p,
          .seed = defaults.sampling.seed,
          .stop_at_end = defaults.stop_at_end,
          .cache = defaults.cache,
          .threads = 0,
          .min_p = defaults.sampling.min_p,
          .repetition_penalty = defaults.sampling.repetition_penalty,
          .draft = nullptr,
          .draft_tokens = defaults.draft_tokens,
          .stop = nullptr,
          .stop_count = 0,
          .cache_type = -1};
}

std::vector<std::string> stop_strings(const rootdk_generate_params* params) {
  if (!params) return {};
  const auto p = read_struct(params, default_params(), "rootdk_generate_params");
  require(p.stop != nullptr || p.stop_count == 0, "c_api: stop is null, stop_count ", p.stop_count);
  std::vector<std::string> strings;
  for (size_t i = 0; i < p.stop_count; ++i) {
    require(p.stop[i] != nullptr, "c_api: stop string ", i, " is null");
    strings.emplace_back(p.stop[i]);
  }
  return strings;
}

// What the pending token adds to the text, or the end where there is none. One that throws can be called again.
std::string text_of_next(rootdk_generation& generation) {
  if (!generation.pending) return generation.stop ? generation.stop->finish() : "";
  if (!generation.stream) return "";
  if (!generation.decoded) generation.decoded = generation.stream->push(*generation.pending);
  return generation.stop ? generation.stop->push(*generation.decoded) : *generation.decoded;
}

}  // namespace

GenerateParams models_api::convert_params(const rootdk_generate_params* params) {
  if (!params) return {};
  const auto p = read_struct(params, default_params(), "rootdk_generate_params");
  return {.max_new = p.max_new,
          .sampling = {.greedy = p.greedy != 0,
                       .temperature = p.temperature,
                       .top_k = p.top_k,
                       .top_p = p.top_p,
                       .min_p = p.min_p,
                       .repetition_penalty = p.repetition_penalty,
                       .seed = p.seed},
          .stop_at_end = p.stop_at_end != 0,
          .cache = p.cache != 0,
          .cache_type = cache_type_of(p.cache_type),
          .draft = p.draft ? &loaded(p.draft).model : nullptr,
          .draft_tokens = p.draft_tokens};
}

void rootdk_generate_params_init_sized(rootdk_generate_params* params, size_t struct_size) {
  init_struct(params, struct_size, default_params());
}

#undef rootdk_generate_params_init
void rootdk_generate_params_init(rootdk_generate_params* params) {
  rootdk_generate_params_init_sized(params, 72);  // the size in version 0.1
}

rootdk_status rootdk_generation_begin(const rootdk_model* model, const int32_t* ids, size_t count,
                                      const rootdk_generate_params* params, rootdk_generation** generation) {
  return guarded([&] {
    rootdk_generation*& made = result(generation, "generation");
    made = nullptr;
    const LoadedModel& subject = loaded(model);
    std::vector<std::int32_t> prompt = ids_of(ids, count);
    const TransformerConfig& config = subject.model.config();
    if (prompt.empty() && config.begin_token >= 0) prompt.push_back(static_cast<std::int32_t>(config.begin_token));
    std::optional<StreamDecoder> stream;
    if (subject.tokenizer) {
      // The answer of an encoder-decoder model is a text of its own.
      stream.emplace(*subject.tokenizer, config.encoder ? std::vector<std::int32_t>() : prompt);
    }
    auto executor = std::make_unique<InterruptibleExecutor>(executor_of(params ? params->threads : 0));
    GenerateParams converted = convert_params(params);
    converted.executor = executor.get();
    std::optional<StopStrings> stop;
    if (std::vector<std::string> strings = stop_strings(params); !strings.empty()) {
      require(stream.has_value(), "generate: stop strings need a tokenizer.json");
      stop.emplace(std::move(strings));
    }
    Generator generator(subject.model, std::move(prompt), converted);
    made = new rootdk_generation{std::move(executor), std::move(generator), std::move(stream), std::move(stop)};
  });
}

rootdk_status rootdk_generation_next(rootdk_generation* generation, int32_t* id, const char** text,
                                     size_t* text_bytes) {
  return guarded([&] {
    require(generation != nullptr, "c_api: the generation is null");
    int32_t& next = result(id, "id");
    std::optional<std::int32_t>& token = generation->pending;
    std::optional<StopStrings>& stop = generation->stop;
    if (!token && !(stop && stop->stopped())) token = generation->generator.next();
    const int32_t drawn = token.value_or(-1);
    if (text || stop) {
      std::string added = text_of_next(*generation);
      if (text) hand_out(std::move(added), text, text_bytes);
    }
    token.reset();
    generation->decoded.reset();
    next = drawn;
  });
}

void rootdk_generation_destroy(rootdk_generation* generation) { delete generation; }
