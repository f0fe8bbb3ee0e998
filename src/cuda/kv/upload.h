#pragma once

// Small tables from the host to device memory, in stream order. They are sent as kernel parameters, because a copy
// could wait for the stream. A graph that captures the call keeps the values it was captured with.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

namespace rootdk::cuda::kv {

void upload_words(std::span<const std::int32_t> words, std::int32_t* to, cudaStream_t stream, int device);

}  // namespace rootdk::cuda::kv
