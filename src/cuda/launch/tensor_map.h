#pragma once

// Tensor maps: what the copy engine needs to bring boxes of a strided tensor into shared memory.

#include <cuda.h>

#include <string>

#include "rootdk/tensor.h"

namespace rootdk::cuda {

// Why the copy engine cannot read the view ([batch, heads, len, dim], 16-bit elements); empty: it can.
std::string tensor_map_refusal(const char* name, const ConstTensorView& view);

// A view [batch, heads, len, dim] as boxes of [rows, columns] under the 128-byte swizzle; coordinates are (column, row,
// head, batch). What lies outside the tensor arrives as zeros. columns * 2 bytes is at most 128, rows at most 256.
CUtensorMap make_tensor_map(const ConstTensorView& view, int rows, int columns);

}  // namespace rootdk::cuda
