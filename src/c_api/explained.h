#pragma once

// The answers of rootdk_explain and its like, as JSON.

#include <string>

#include "c_api/status.h"
#include "rootdk/attention.h"

namespace rootdk::c_api {

std::string to_json(const Explanation& explanation);

// The text of an explanation lives until the next one on the thread. A call that cannot even be converted is explained
// by its message.
template <class Explain>
const char* explained(Explain&& explain) noexcept {
  thread_local std::string text;
  const rootdk_status status = guarded([&] {
    Explanation explanation;
    if (guarded([&] { explanation = explain(); }) != ROOTDK_OK) explanation.error = rootdk_last_error();
    text = to_json(explanation);
  });
  return status == ROOTDK_OK ? text.c_str() : R"({"chosen": "", "error": "out of memory", "candidates": []})";
}

}  // namespace rootdk::c_api
