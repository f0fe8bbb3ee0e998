#pragma once

// Every call of the CUDA runtime goes through check(): failures become rootdk::Error with the reason in words.

#include <cuda_runtime_api.h>

#include "core/check.h"

namespace rootdk::cuda {

template <class... Parts>
void check(cudaError_t status, const Parts&... doing) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // an error that does not stick must not be reported again by the next call
  fail(status == cudaErrorMemoryAllocation ? ErrorKind::out_of_memory : ErrorKind::device, "attention: ", doing...,
       ": ", cudaGetErrorString(status), " (", cudaGetErrorName(status), ")");
}

}  // namespace rootdk::cuda
