#pragma once

// Loads and stores elements of a run-time type as doubles. Stores round once.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "rootdk/dtype.h"

namespace rootdk::cuda::kv {

__device__ inline double load_as_double(const void* data, DType dtype, std::int64_t offset) {
  switch (dtype) {
    case DType::f64: return static_cast<const double*>(data)[offset];
    case DType::bf16: return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[offset]);
    case DType::f16: return __half2float(static_cast<const __half*>(data)[offset]);
    default: return static_cast<const float*>(data)[offset];
  }
}

__device__ inline void store_double(void* data, DType dtype, std::int64_t offset, double value) {
  switch (dtype) {
    case DType::bf16: static_cast<__nv_bfloat16*>(data)[offset] = __double2bfloat16(value); break;
    case DType::f16: static_cast<__half*>(data)[offset] = __double2half(value); break;
    default: static_cast<float*>(data)[offset] = static_cast<float>(value);
  }
}

}  // namespace rootdk::cuda::kv
