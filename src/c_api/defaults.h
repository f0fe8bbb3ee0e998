#pragma once

// The defaults of every C struct, from those of the C++ parameters.

#include "rootdk/c_api.h"

namespace rootdk::c_api {

template <class Struct>
Struct defaults() {
  Struct value{};
  value.struct_size = sizeof value;
  return value;
}
template <>
rootdk_attention_params defaults();
template <>
rootdk_attention_stats defaults();
template <>
rootdk_rope_params defaults();
template <>
rootdk_kv_cache_config defaults();
template <>
rootdk_attend_params defaults();

}  // namespace rootdk::c_api
