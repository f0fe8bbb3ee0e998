#include "c_api/status.h"
#include "models/beam.h"
#include "models_api/handles.h"
#include "models_api/interruptible.h"

using namespace rootdk;
using namespace rootdk::models_api;
using rootdk::c_api::guarded;

struct rootdk_beams {
  std::vector<BeamResult> results;
};

namespace {

rootdk_beam_params default_params() {
  const BeamParams defaults;
  return {.struct_size = sizeof(rootdk_beam_params),
          .beams = defaults.beams,
          .max_new = defaults.max_new,
          .length_penalty = defaults.length_penalty,
          .stop_at_end = defaults.stop_at_end,
          .cache_type = -1,
          .threads = 0};
}

}  // namespace

void rootdk_beam_params_init_sized(rootdk_beam_params* params, size_t struct_size) {
  init_struct(params, struct_size, default_params());
}

#undef rootdk_beam_params_init
void rootdk_beam_params_init(rootdk_beam_params* params) {
  rootdk_beam_params_init_sized(params, 48);  // the size when it was new
}

rootdk_status rootdk_beam_search(const rootdk_model* model, const int32_t* ids, size_t id_count,
                                 const rootdk_beam_params* params, rootdk_beams** beams, size_t* count) {
  return guarded([&] {
    rootdk_beams*& made = result(beams, "beams");
    size_t& found = result(count, "count");
    made = nullptr;
    const auto p = params ? read_struct(params, default_params(), "rootdk_beam_params") : default_params();
    InterruptibleExecutor executor(executor_of(p.threads));
    std::vector<BeamResult> results = beam_search(loaded(model).model, ids_of(ids, id_count),
                                                  {.beams = p.beams,
                                                   .max_new = p.max_new,
                                                   .length_penalty = p.length_penalty,
                                                   .stop_at_end = p.stop_at_end != 0,
                                                   .cache_type = cache_type_of(p.cache_type),
                                                   .executor = &executor});
    made = new rootdk_beams{std::move(results)};
    found = made->results.size();
  });
}

rootdk_status rootdk_beams_get(const rootdk_beams* beams, size_t index, const int32_t** ids, size_t* count,
                               double* log_probability, double* score) {
  return guarded([&] {
    require(beams != nullptr, "c_api: the beams are null");
    require(index < beams->results.size(), "beams: there is no beam ", index, "; there are ", beams->results.size());
    const BeamResult& beam = beams->results[index];
    result(count, "count") = static_cast<size_t>(beam.new_tokens);
    result(ids, "ids") = beam.ids.data() + (beam.ids.size() - static_cast<size_t>(beam.new_tokens));
    if (log_probability) *log_probability = beam.log_probability;
    if (score) *score = beam.score;
  });
}

void rootdk_beams_destroy(rootdk_beams* beams) { delete beams; }
