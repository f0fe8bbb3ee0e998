#pragma once

// What the kernels receive, by value.

#include "cuda/common/logit_rule.h"

namespace rootdk::cuda::portable {

// q, k, v, out and their gradients: [batch, heads, rows, columns] with contiguous columns.
struct Matrix {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t strides[3] = {};
  int columns = 0;
  bool vectors = false;  // every row begins at a multiple of 16 bytes and is whole 16-byte vectors long

  __device__ std::int64_t offset(int entry, int head, int row) const {
    return entry * strides[0] + head * strides[1] + row * strides[2];
  }
  __host__ __device__ explicit operator bool() const { return data != nullptr; }
};

struct ForwardArguments {
  LogitRule rule;
  Matrix q, k, v, out;
  DeviceView<float, 3> lse, max_logit, max_weight, entropy, sum_p2;  // [tensor batch, heads, tensor rows]
  int row_blocks = 0;                                                // query blocks a head
  int parts = 0;                                                     // column parts of the output
};

// The per-row terms that backward needs beside q, k, v: [tensor batch, heads, tensor rows] each.
struct RowTermViews {
  DeviceView<const float, 3> lse;
  DeviceView<const float, 3> constant;          // the row's constant (backward_tile.h); row_passes.cu fills it
  DeviceView<const float, 3> entropy_gradient;  // null: the loss does not use the entropy
};

struct BackwardArguments {
  LogitRule rule;
  Matrix q, k, v, grad_out;
  RowTermViews terms;
  DeviceView<const float, 3> q_exponent, k_exponent;  // cosine score: q and k are scaled (row_passes.h)
  Matrix grad_q, grad_k, grad_v;
  float* additive_partial = nullptr;  // [batch, heads, row blocks, head_dim]; null: not asked for

  int blocks = 0;                           // blocks of queries or keys a head
  int parts = 0;                            // column parts of the gradients
  int head_columns = 0, value_columns = 0;  // of the tiles in shared memory, padding included
  int stages = 1;                           // tiles in flight: 2 if shared memory allows, else 1
};

}  // namespace rootdk::cuda::portable
