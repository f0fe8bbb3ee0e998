#include "c_api/status.h"
#include "models/generate.h"
#include "models_api/handles.h"
#include "models_api/interruptible.h"

using namespace rootdk;
using namespace rootdk::models_api;
using rootdk::c_api::guarded;

struct rootdk_generation {
  std::unique_ptr<InterruptibleExecutor> executor;  // of the generator
  Generator generator;
  std::optional<StreamDecoder> stream{};  // where the model has a tokenizer
};

namespace {

GenerateParams convert_params(const rootdk_generate_params* params) {
  if (!params) return {};
  require_size(params, "rootdk_generate_params");
  return {.max_new = params->max_new,
          .sampling = {.greedy = params->greedy != 0,
                       .temperature = params->temperature,
                       .top_k = params->top_k,
                       .top_p = params->top_p,
                       .seed = params->seed},
          .stop_at_end = params->stop_at_end != 0,
          .cache = params->cache != 0};
}

}  // namespace

void rootdk_generate_params_init(rootdk_generate_params* params) {
  const GenerateParams defaults;
  *params = {.struct_size = sizeof *params,
             .max_new = defaults.max_new,
             .greedy = defaults.sampling.greedy,
             .temperature = defaults.sampling.temperature,
             .top_k = defaults.sampling.top_k,
             .top_p = defaults.sampling.top_p,
             .seed = defaults.sampling.seed,
             .stop_at_end = defaults.stop_at_end,
             .cache = defaults.cache,
             .threads = 0};
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
    Generator generator(subject.model, std::move(prompt), converted);
    made = new rootdk_generation{std::move(executor), std::move(generator), std::move(stream)};
  });
}

rootdk_status rootdk_generation_next(rootdk_generation* generation, int32_t* id, const char** text,
                                     size_t* text_bytes) {
  return guarded([&] {
    require(generation != nullptr, "c_api: the generation is null");
    int32_t& next = result(id, "id");
    const std::optional<std::int32_t> token = generation->generator.next();
    next = token.value_or(-1);
    if (text) hand_out(token && generation->stream ? generation->stream->push(*token) : "", text, text_bytes);
  });
}

void rootdk_generation_destroy(rootdk_generation* generation) { delete generation; }
