#pragma once

// Tensor maps: what the copy engine needs to copy boxes of a strided tensor into shared memory.

#include <cuda.h>

#include <string>

#include "rootdk/tensor.h"

namespace rootdk::cuda {

// Why the copy engine cannot read the view ([batch, heads, len, dim] of bf16, f16 or bytes); empty: it can.
std::string tensor_map_refusal(const char* name, const ConstTensorView& view);

// A view [batch, heads, len, dim] as boxes of [rows, columns], rows at most 256; coordinates are (column, row, head,
// batch). Elements outside the tensor arrive as zeros. Rows of a box have at most 128 bytes. They arrive under the
// 128-byte swizzle; rows of 64 and 32 bytes under the swizzles of that width.
CUtensorMap make_tensor_map(const ConstTensorView& view, int rows, int columns);

}  // namespace rootdk::cuda
