#pragma once

// Small passes over whole rows: norms for the cosine score, the constants of the backward pass, the gradient of the
// sinks; and the final sums, in a fixed order, of gradients that are computed in parts.

#include <cuda_runtime_api.h>

#include "cuda/portable/arguments.h"

namespace rootdk::cuda::portable {

// A copy of every row for the cosine score, times a power of two that keeps its squares inside f32: the largest element
// of x 2^-exponent is in [1, 2). A row of f16 is only made larger, since its own small elements would be lost. Beside
// it 1 / |x 2^-exponent|, 0 for a zero row.
struct NormArguments {
  Matrix x, scaled;
  DeviceView<float, 3> inverse_norm, exponent;  // [batch, heads, rows]
  int batch = 0, heads = 0, rows = 0;
};
void launch_inverse_norms(const NormArguments& args, cudaStream_t stream);

// What is the same for every key of a row in the gradient by its logits (backward_tile.h):
//     grad_lse - out . grad_out + grad_entropy (share of the real keys - entropy)
struct RowConstantArguments {
  Matrix out, grad_out;
  DeviceView<const float, 3> lse, entropy;
  DeviceView<const float, 3> grad_lse, grad_entropy;  // upstream gradients; null: none
  DeviceView<const float, 1> sinks;
  DeviceView<float, 3> constant;
  int batch = 0, heads = 0, rows = 0;
};
void launch_row_constants(const RowConstantArguments& args, cudaStream_t stream);

// The sink is one more logit of every row, with no value behind it.
struct SinkArguments {
  DeviceView<const float, 3> lse, constant;
  DeviceView<const float, 1> sinks;
  DeviceView<float, 1> grad_sinks;
  int batch = 0, heads = 0, rows = 0;
};
void launch_sink_gradient(const SinkArguments& args, cudaStream_t stream);

// Relative table and ALiBi slopes from the sums by distance (tile_sum_kernel.h).
struct DistanceArguments {
  LogitRule rule;
  const float* partial = nullptr;  // [batch, heads, offsets, diagonals]
  int offsets = 0, diagonals = 0;
  int key_tiles = 0, stream = 0;    // they number the offsets: DistanceLayout
  int table_heads = 0;              // heads of the relative table: 1 where it is shared
  DeviceView<float, 2> grad_table;  // [table heads, entries]
  DeviceView<float, 1> grad_slopes;

  // The distance of diagonal 0 of an offset in one sequence.
  __device__ int first_distance(const Sequence& s, int offset) const {
    return (offset - (key_tiles - 1)) * stream - (stream - 1) + s.shift();
  }
  __device__ const float* sums(int sequence, int head, int offset) const {
    return partial + ((static_cast<std::int64_t>(sequence) * rule.heads + head) * offsets + offset) * diagonals;
  }
};
void launch_distance_gradients(const DistanceArguments& args, cudaStream_t stream);

// The vector of the additive score from the blocks of queries.
struct VectorArguments {
  const float* partial = nullptr;  // [batch, heads, blocks, head_dim]
  DeviceView<float, 2> grad_vector;
  int batch = 0, heads = 0, blocks = 0, head_dim = 0;
};
void launch_vector_gradient(const VectorArguments& args, cudaStream_t stream);

}  // namespace rootdk::cuda::portable
