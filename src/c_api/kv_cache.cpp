#include "rootdk/kv_cache.h"

#include <vector>

#include "c_api/convert.h"
#include "c_api/status.h"
#include "core/check.h"

using namespace rootdk::c_api;

struct rootdk_kv_cache {
  rootdk::KvCache cache;
};

namespace {

template <class Cache>
auto& cache_of(Cache* cache) {
  rootdk::require(cache != nullptr, "c_api: the cache is null");
  return cache->cache;
}

rootdk::SequenceId id(int64_t sequence) { return static_cast<rootdk::SequenceId>(sequence); }

rootdk::KvCacheConfig convert_config(const rootdk_kv_cache_config* config) {
  rootdk::require(config != nullptr, "c_api: the configuration of a cache is null");
  require_size(config, "rootdk_kv_cache_config");
  return {.layout = static_cast<rootdk::KvLayout>(config->layout),
          .dtype = static_cast<rootdk::DType>(config->dtype),
          .layers = config->layers,
          .kv_heads = config->kv_heads,
          .head_dim = config->head_dim,
          .value_dim = config->value_dim,
          .page_size = config->page_size,
          .pages = config->pages,
          .max_sequences = config->max_sequences,
          .max_len = config->max_len,
          .device = {static_cast<rootdk::DeviceKind>(config->device_kind), config->device_index},
          .storage = {.k = view(config->k),
                      .v = view(config->v),
                      .k_scales = view(config->k_scales),
                      .v_scales = view(config->v_scales)}};
}

std::vector<rootdk::KvStep> convert_steps(const rootdk_kv_step* steps, size_t count) {
  rootdk::require(steps != nullptr || count == 0, "c_api: steps is null, step_count ", count);
  std::vector<rootdk::KvStep> converted;
  for (size_t i = 0; i < count; ++i) {
    converted.push_back({.sequence = id(steps[i].sequence), .tokens = steps[i].tokens, .position = steps[i].position});
  }
  return converted;
}

std::optional<rootdk::RopeParams> convert_rope(const rootdk_rope_params* rope) {
  if (!rope) return {};
  return convert(rope);
}

rootdk::AttendParams convert_params(const rootdk_attend_params* params) {
  if (!params) return {};
  require_size(params, "rootdk_attend_params");
  return {.layer = params->layer,
          .scale = convert_scale(params->scale_kind, params->scale),
          .temperature = params->temperature,
          .softcap = params->softcap,
          .window_left = params->window_left,
          .window_keeps_first = params->window_keeps_first,
          .relative_table = view(params->relative_table),
          .relative_zero = params->relative_zero,
          .alibi_slopes = view(params->alibi_slopes),
          .sinks = view(params->sinks),
          .rope = convert_rope(params->rope)};
}

rootdk::AttendStats convert_stats(const rootdk_attend_stats* stats) {
  if (!stats) return {};
  require_size(stats, "rootdk_attend_stats");
  return {.lse = view(stats->lse),
          .max_logit = view(stats->max_logit),
          .max_weight = view(stats->max_weight),
          .entropy = view(stats->entropy),
          .sum_p2 = view(stats->sum_p2)};
}

}  // namespace

void rootdk_kv_cache_config_init(rootdk_kv_cache_config* config) {
  const rootdk::KvCacheConfig defaults;
  clear(config);
  config->layout = static_cast<int32_t>(defaults.layout);
  config->dtype = static_cast<int32_t>(defaults.dtype);
  config->layers = defaults.layers;
  config->page_size = defaults.page_size;
}

void rootdk_attend_params_init(rootdk_attend_params* params) {
  const rootdk::AttendParams defaults;
  clear(params);
  params->scale = 1.0;
  params->temperature = defaults.temperature;
  params->window_left = defaults.window_left;
}

void rootdk_attend_stats_init(rootdk_attend_stats* stats) { clear(stats); }

rootdk_status rootdk_kv_cache_create(const rootdk_kv_cache_config* config, rootdk_kv_cache** cache) {
  return guarded([&] {
    rootdk_kv_cache*& made = result(cache, "cache");
    made = nullptr;
    made = new rootdk_kv_cache{rootdk::KvCache(convert_config(config))};
  });
}

void rootdk_kv_cache_destroy(rootdk_kv_cache* cache) { delete cache; }

rootdk_status rootdk_kv_usage_of(const rootdk_kv_cache* cache, rootdk_kv_usage* usage) {
  return guarded([&] {
    const rootdk::KvCacheUsage u = cache_of(cache).usage();
    result(usage, "usage") = {u.sequences, u.pages, u.free_pages, u.shared_pages, u.bytes};
  });
}

rootdk_status rootdk_kv_open(rootdk_kv_cache* cache, int64_t* sequence) {
  return guarded([&] {
    int64_t& opened = result(sequence, "sequence");
    opened = static_cast<int64_t>(cache_of(cache).open());
  });
}

rootdk_status rootdk_kv_fork(rootdk_kv_cache* cache, int64_t parent, int64_t length, int64_t* sequence) {
  return guarded([&] {
    int64_t& forked = result(sequence, "sequence");
    forked = static_cast<int64_t>(cache_of(cache).fork(id(parent), length));
  });
}

rootdk_status rootdk_kv_close(rootdk_kv_cache* cache, int64_t sequence) {
  return guarded([&] { cache_of(cache).close(id(sequence)); });
}

rootdk_status rootdk_kv_length(const rootdk_kv_cache* cache, int64_t sequence, int64_t layer, int64_t* length) {
  return guarded([&] { result(length, "length") = cache_of(cache).length(id(sequence), layer); });
}

rootdk_status rootdk_kv_trim(rootdk_kv_cache* cache, int64_t sequence, int64_t length) {
  return guarded([&] { cache_of(cache).trim(id(sequence), length); });
}

rootdk_status rootdk_kv_evict(rootdk_kv_cache* cache, int64_t sequence, int64_t keep_first, int64_t keep_last) {
  return guarded([&] { cache_of(cache).evict(id(sequence), keep_first, keep_last); });
}

rootdk_status rootdk_kv_append(rootdk_kv_cache* cache, const rootdk_tensor* k, const rootdk_tensor* v,
                               const rootdk_kv_step* steps, size_t step_count, int64_t layer,
                               const rootdk_rope_params* rope, const rootdk_execution* execution) {
  return guarded([&] {
    const ConvertedExecution where(execution);
    rootdk::append(cache_of(cache), view(k), view(v), convert_steps(steps, step_count),
                   {.layer = layer, .rope = convert_rope(rope)}, where);
  });
}

rootdk_status rootdk_kv_attend_workspace(const rootdk_kv_cache* cache, const rootdk_tensor* q, const rootdk_tensor* out,
                                         const rootdk_kv_step* steps, size_t step_count,
                                         const rootdk_attend_params* params, const rootdk_attend_stats* stats,
                                         size_t* bytes) {
  return guarded([&] {
    result(bytes, "bytes") =
        rootdk::attend_workspace(cache_of(cache), view(q), view(out), convert_steps(steps, step_count),
                                 convert_params(params), convert_stats(stats));
  });
}

rootdk_status rootdk_kv_attend(const rootdk_kv_cache* cache, const rootdk_tensor* q, const rootdk_tensor* out,
                               const rootdk_kv_step* steps, size_t step_count, const rootdk_attend_params* params,
                               const rootdk_attend_stats* stats, const rootdk_execution* execution) {
  return guarded([&] {
    const ConvertedExecution where(execution);
    rootdk::attend(cache_of(cache), view(q), view(out), convert_steps(steps, step_count), convert_params(params),
                   convert_stats(stats), where);
  });
}
