#pragma once

// Calls on a GPU that were made before. A small call takes the driver a few microseconds, and it took half as long
// again to convert, validate and choose. A call that comes again, with the same shapes, strides, types and numbers, is
// found by these, gets its new addresses, and runs. Each thread remembers a few dozen.

#include "rootdk/c_api.h"

namespace rootdk::c_api {

struct ForwardTensors {
  const rootdk_tensor *q, *k, *v, *out;
};
struct BackwardTensors {
  const rootdk_attention_saved* saved;
  const rootdk_attention_upstream* upstream;
  const rootdk_attention_gradients* gradients;
};

// Whether the call has run here; otherwise nothing has happened, and it goes the ordinary way. Throws what that throws.
bool run_plan(const ForwardTensors& tensors, const rootdk_attention_params* params, const rootdk_attention_stats* stats,
              const rootdk_execution* execution);
bool run_plan(const BackwardTensors& tensors, const rootdk_attention_params* params, const rootdk_execution* execution);

}  // namespace rootdk::c_api
