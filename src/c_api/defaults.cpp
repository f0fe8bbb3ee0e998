#include "c_api/defaults.h"

#include "rootdk/attention.h"
#include "rootdk/kv_cache.h"
#include "rootdk/positions.h"

namespace rootdk::c_api {

template <>
rootdk_attention_params defaults() {
  const AttentionParams params;
  rootdk_attention_params value{};
  value.struct_size = sizeof value;
  value.scale = 1.0;
  value.temperature = params.logits.temperature;
  value.window_left = params.window_left;
  value.window_right = params.window_right;
  return value;
}

template <>
rootdk_attention_stats defaults() {
  rootdk_attention_stats value{};
  value.struct_size = sizeof value;
  value.stride = StatsRequest{}.stride;
  return value;
}

template <>
rootdk_rope_params defaults() {
  const RopeParams params;
  rootdk_rope_params value{};
  value.struct_size = sizeof value;
  value.base = params.base;
  value.factor = params.factor;
  value.beta_fast = params.beta_fast;
  value.beta_slow = params.beta_slow;
  value.truncate = params.truncate;
  value.low_freq_factor = params.low_freq_factor;
  value.high_freq_factor = params.high_freq_factor;
  return value;
}

template <>
rootdk_kv_cache_config defaults() {
  const KvCacheConfig config;
  rootdk_kv_cache_config value{};
  value.struct_size = sizeof value;
  value.layout = static_cast<int32_t>(config.layout);
  value.dtype = static_cast<int32_t>(config.dtype);
  value.layers = config.layers;
  value.page_size = config.page_size;
  return value;
}

template <>
rootdk_attend_params defaults() {
  const AttendParams params;
  rootdk_attend_params value{};
  value.struct_size = sizeof value;
  value.scale = 1.0;
  value.temperature = params.logits.temperature;
  value.window_left = params.window_left;
  return value;
}

}  // namespace rootdk::c_api
