#pragma once

// What the handles of rootdk/models_c_api.h hold, and how results reach the caller.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "c_api/convert.h"
#include "c_api/struct_version.h"
#include "core/check.h"
#include "models/generate.h"
#include "models/loaded_model.h"
#include "rootdk/models_c_api.h"

struct rootdk_model {
  rootdk::LoadedModel loaded;
};

namespace rootdk::models_api {

using c_api::init_struct;
using c_api::read_struct;
using c_api::result;

inline const LoadedModel& loaded(const rootdk_model* model) {
  require(model != nullptr, "c_api: the model is null");
  return model->loaded;
}

inline std::vector<std::int32_t> ids_of(const int32_t* ids, size_t count) {
  require(ids != nullptr || count == 0, "c_api: ids is null, count ", count);
  return {ids, ids + count};
}

inline Executor* executor_of(int32_t threads) {
  require(threads >= 0, "c_api: threads ", threads, " must not be negative");
  return threads > 0 ? &shared_executor(threads) : nullptr;
}

// A cache type of the C ABI; -1: none given.
inline std::optional<DType> cache_type_of(int32_t type) {
  if (type == -1) return {};
  require(type >= ROOTDK_F32 && type <= ROOTDK_F8E4M3, "c_api: cache_type ", type, " is no rootdk_dtype and not -1");
  return static_cast<DType>(type);
}

// What a generation is asked for, without its executor.
GenerateParams convert_params(const rootdk_generate_params* params);

// Keeps a text for the caller, until the next call on this thread.
void hand_out(std::string text, const char** to, size_t* bytes);

}  // namespace rootdk::models_api
