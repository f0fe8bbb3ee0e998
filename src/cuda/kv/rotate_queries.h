#pragma once

#include <cuda_runtime_api.h>

#include "core/kv_call.h"

namespace rootdk::cuda::kv {

// The queries of the call, rotated at their positions and rounded to their type: [heads, tokens, head_dim].
// `positions` is on the device: one for each token.
void rotate_queries(const AttendCall& call, const std::int32_t* positions, void* rotated, cudaStream_t stream);

}  // namespace rootdk::cuda::kv
