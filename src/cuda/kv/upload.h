#pragma once

// Small tables from the host into device memory, in stream order, without a copy that could wait for the stream: they
// travel as parameters of a kernel. A graph that captures the call keeps the values of that moment.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

namespace rootdk::cuda::kv {

void upload_words(std::span<const std::int32_t> words, std::int32_t* to, cudaStream_t stream, int device);

}  // namespace rootdk::cuda::kv
