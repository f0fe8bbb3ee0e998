#pragma once

#include <cuda_runtime_api.h>

#include "rootdk/tensor.h"

namespace rootdk::cuda {

enum class RowUpdate { copy, add };

// to = from, or to += from: views [batch, heads, rows, width] of one shape and type, or f32 that is rounded to 16 bits
// or added to in 16 bits.
void update_rows(const TensorView& to, const ConstTensorView& from, RowUpdate update, cudaStream_t stream);

}  // namespace rootdk::cuda
