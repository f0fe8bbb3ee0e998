#include "rootdk/kv_cache.h"

#include <vector>

#include "c_api/convert.h"
#include "c_api/defaults.h"
#include "c_api/explained.h"
#include "c_api/status.h"
#include "c_api/struct_version.h"
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
  const auto c = read_struct(config, defaults<rootdk_kv_cache_config>(), "rootdk_kv_cache_config");
  return {.layout = static_cast<rootdk::KvLayout>(c.layout),
          .dtype = static_cast<rootdk::DType>(c.dtype),
          .layers = c.layers,
          .kv_heads = c.kv_heads,
          .head_dim = c.head_dim,
          .value_dim = c.value_dim,
          .page_size = c.page_size,
          .pages = c.pages,
          .max_sequences = c.max_sequences,
          .max_len = c.max_len,
          .device = {static_cast<rootdk::DeviceKind>(c.device_kind), c.device_index},
          .storage = {.k = view(c.k), .v = view(c.v), .k_scales = view(c.k_scales), .v_scales = view(c.v_scales)}};
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
  const auto p = read_struct(params, defaults<rootdk_attend_params>(), "rootdk_attend_params");
  return {.layer = p.layer,
          .logits = {.scale = convert_scale(p.scale_kind, p.scale),
                     .temperature = p.temperature,
                     .softcap = p.softcap,
                     .relative_table = view(p.relative_table),
                     .relative_zero = p.relative_zero,
                     .alibi_slopes = view(p.alibi_slopes),
                     .sinks = view(p.sinks)},
          .window_left = p.window_left,
          .window_keeps_first = p.window_keeps_first,
          .rope = convert_rope(p.rope)};
}

rootdk::AttentionStats convert_stats(const rootdk_attend_stats* stats) {
  if (!stats) return {};
  const auto s = read_struct(stats, defaults<rootdk_attend_stats>(), "rootdk_attend_stats");
  return {.lse = view(s.lse),
          .max_logit = view(s.max_logit),
          .max_weight = view(s.max_weight),
          .entropy = view(s.entropy),
          .sum_p2 = view(s.sum_p2)};
}

}  // namespace

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

rootdk_status rootdk_kv_grow(rootdk_kv_cache* cache, int64_t pages) {
  return guarded([&] { cache_of(cache).grow(pages); });
}

rootdk_status rootdk_kv_config_of(const rootdk_kv_cache* cache, rootdk_kv_cache_config* config) {
  return guarded([&] {
    const rootdk::KvCacheConfig& c = cache_of(cache).config();
    const size_t size = result(config, "config").struct_size;
    require_struct_size<rootdk_kv_cache_config>(size, "rootdk_kv_cache_config");
    rootdk_kv_cache_config made = defaults<rootdk_kv_cache_config>();
    made.layout = static_cast<int32_t>(c.layout);
    made.dtype = static_cast<int32_t>(c.dtype);
    made.layers = c.layers;
    made.kv_heads = c.kv_heads;
    made.head_dim = c.head_dim;
    made.value_dim = c.value_dim;
    made.page_size = c.page_size;
    made.pages = c.pages;
    made.max_sequences = c.max_sequences;
    made.max_len = c.max_len;
    made.device_kind = static_cast<int32_t>(c.device.kind);
    made.device_index = c.device.index;
    write_struct(config, size, made);
  });
}

rootdk_status rootdk_kv_page_of(const rootdk_kv_cache* cache, int64_t sequence, int64_t position, int64_t* page) {
  return guarded([&] { result(page, "page") = cache_of(cache).page_of(id(sequence), position); });
}

rootdk_status rootdk_kv_page(const rootdk_kv_cache* cache, int64_t page, int64_t layer, rootdk_tensor* k,
                             rootdk_tensor* v, rootdk_tensor* k_scales, rootdk_tensor* v_scales, int64_t* references) {
  return guarded([&] {
    const rootdk::KvPage held = cache_of(cache).page(page, layer);
    const auto hand_out = [](const rootdk::ConstTensorView& from, rootdk_tensor* to) {
      if (to) *to = c_tensor(from);
    };
    hand_out(held.k, k);
    hand_out(held.v, v);
    hand_out(held.k_scales, k_scales);
    hand_out(held.v_scales, v_scales);
    if (references) *references = held.references;
  });
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

rootdk_status rootdk_kv_attend_workspace_on(const rootdk_kv_cache* cache, const rootdk_tensor* q,
                                            const rootdk_tensor* out, const rootdk_kv_step* steps, size_t step_count,
                                            const rootdk_attend_params* params, const rootdk_attend_stats* stats,
                                            const rootdk_execution* execution, size_t* bytes) {
  return guarded([&] {
    size_t& wanted = result(bytes, "bytes");
    const ConvertedExecution where(execution);
    wanted = rootdk::attend_workspace(cache_of(cache), view(q), view(out), convert_steps(steps, step_count),
                                      convert_params(params), convert_stats(stats), where);
  });
}

rootdk_status rootdk_kv_attend_workspace(const rootdk_kv_cache* cache, const rootdk_tensor* q, const rootdk_tensor* out,
                                         const rootdk_kv_step* steps, size_t step_count,
                                         const rootdk_attend_params* params, const rootdk_attend_stats* stats,
                                         size_t* bytes) {
  return rootdk_kv_attend_workspace_on(cache, q, out, steps, step_count, params, stats, nullptr, bytes);
}

const char* rootdk_kv_explain_attend(const rootdk_kv_cache* cache, const rootdk_tensor* q, const rootdk_tensor* out,
                                     const rootdk_kv_step* steps, size_t step_count, const rootdk_attend_params* params,
                                     const rootdk_attend_stats* stats, const rootdk_execution* execution) {
  return explained([&] {
    const ConvertedExecution where(execution);
    return rootdk::explain_attend(cache_of(cache), view(q), view(out), convert_steps(steps, step_count),
                                  convert_params(params), convert_stats(stats), where);
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
