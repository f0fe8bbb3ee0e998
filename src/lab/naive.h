#pragma once

// The textbook computation of attention, with the whole n x n matrix in memory: what the fused kernels are measured
// against.

#include "rootdk/tensor.h"

namespace rootdk::lab {

// q, k, v, out f32 [1, 1, n, d], contiguous.
void naive_attention(const Tensor& q, const Tensor& k, const Tensor& v, Tensor& out, double scale);

}  // namespace rootdk::lab
