#include "c_api/defaults.h"
#include "c_api/status.h"
#include "c_api/struct_version.h"

using namespace rootdk::c_api;

namespace {

template <class Struct>
void init(void* to, std::size_t size) {
  init_struct(static_cast<Struct*>(to), size, defaults<Struct>());
}

}  // namespace

rootdk_status rootdk_struct_init(void* value, int32_t kind, size_t struct_size) {
  return guarded([&] {
    rootdk::require(value != nullptr, "c_api: the struct to initialise is null");
    require_struct_size<rootdk_execution>(struct_size, "the struct to initialise");
    switch (kind) {
      case ROOTDK_STRUCT_ATTENTION_PARAMS: return init<rootdk_attention_params>(value, struct_size);
      case ROOTDK_STRUCT_ATTENTION_STATS: return init<rootdk_attention_stats>(value, struct_size);
      case ROOTDK_STRUCT_EXECUTION: return init<rootdk_execution>(value, struct_size);
      case ROOTDK_STRUCT_ATTENTION_SAVED: return init<rootdk_attention_saved>(value, struct_size);
      case ROOTDK_STRUCT_ATTENTION_UPSTREAM: return init<rootdk_attention_upstream>(value, struct_size);
      case ROOTDK_STRUCT_ATTENTION_GRADIENTS: return init<rootdk_attention_gradients>(value, struct_size);
      case ROOTDK_STRUCT_ROPE_PARAMS: return init<rootdk_rope_params>(value, struct_size);
      case ROOTDK_STRUCT_KV_CACHE_CONFIG: return init<rootdk_kv_cache_config>(value, struct_size);
      case ROOTDK_STRUCT_ATTEND_PARAMS: return init<rootdk_attend_params>(value, struct_size);
      case ROOTDK_STRUCT_ATTEND_STATS: return init<rootdk_attend_stats>(value, struct_size);
      case ROOTDK_STRUCT_QUANTIZED: return init<rootdk_quantized>(value, struct_size);
      default: rootdk::fail("c_api: there is no struct ", kind);
    }
  });
}

// What callers that were built against version 0.1 link. They know the structs at these sizes: never write more.
extern "C" {
#undef rootdk_attention_params_init
#undef rootdk_attention_stats_init
#undef rootdk_execution_init
#undef rootdk_attention_saved_init
#undef rootdk_attention_upstream_init
#undef rootdk_attention_gradients_init
#undef rootdk_rope_params_init
#undef rootdk_kv_cache_config_init
#undef rootdk_attend_params_init
#undef rootdk_attend_stats_init
void rootdk_attention_params_init(rootdk_attention_params* p) { init<rootdk_attention_params>(p, 200); }
void rootdk_attention_stats_init(rootdk_attention_stats* p) { init<rootdk_attention_stats>(p, 88); }
void rootdk_execution_init(rootdk_execution* p) { init<rootdk_execution>(p, 80); }
void rootdk_attention_saved_init(rootdk_attention_saved* p) { init<rootdk_attention_saved>(p, 56); }
void rootdk_attention_upstream_init(rootdk_attention_upstream* p) { init<rootdk_attention_upstream>(p, 32); }
void rootdk_attention_gradients_init(rootdk_attention_gradients* p) { init<rootdk_attention_gradients>(p, 80); }
void rootdk_rope_params_init(rootdk_rope_params* p) { init<rootdk_rope_params>(p, 112); }
void rootdk_kv_cache_config_init(rootdk_kv_cache_config* p) { init<rootdk_kv_cache_config>(p, 120); }
void rootdk_attend_params_init(rootdk_attend_params* p) { init<rootdk_attend_params>(p, 104); }
void rootdk_attend_stats_init(rootdk_attend_stats* p) { init<rootdk_attend_stats>(p, 48); }
}
