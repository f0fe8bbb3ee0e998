#pragma once

// Small passes over whole rows, one warp a row: norms for the cosine score, the constants of the backward pass, and the
// gradient of the sinks.

#include "cuda/common/row_statistics.h"
#include "cuda/portable/tile.h"

namespace rootdk::cuda::portable {

inline constexpr int kRowThreads = 128;

// The warp's row of a tensor [batch, heads, rows]; false where there is none left.
struct RowPlace {
  int entry = 0, head = 0, row = 0;

  __device__ bool find(std::int64_t batch, int heads, int rows) {
    const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * (kRowThreads / 32) + warp_index();
    row = static_cast<int>(index % rows);
    head = static_cast<int>(index / rows % heads);
    entry = static_cast<int>(index / rows / heads);
    return entry < batch;
  }
};

__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) value += __shfl_xor_sync(0xffffffffu, value, lanes);
  return value;
}

// The sum over a block of kRowThreads, in a fixed order; every thread gets it. scratch: one float a warp.
__device__ inline float block_sum(float value, float* scratch) {
  value = warp_sum(value);
  if (lane_index() == 0) scratch[warp_index()] = value;
  __syncthreads();
  float sum = 0.0f;
  for (int warp = 0; warp < kRowThreads / 32; ++warp) sum += scratch[warp];
  __syncthreads();
  return sum;
}

struct NormArguments {
  Matrix x;
  DeviceView<float, 3> inverse_norm;
  int batch = 0, heads = 0, rows = 0;
};

// 1 / |x|, and 0 for a zero row.
__global__ void inverse_norm_kernel(const __grid_constant__ NormArguments args) {
  RowPlace place;
  if (!place.find(args.batch, args.heads, args.rows)) return;
  const std::int64_t offset = args.x.offset(place.entry, place.head, place.row);
  float sum = 0.0f;
  for (int d = lane_index(); d < args.x.columns; d += 32) {
    const float x = load_as_float(args.x.data, args.x.dtype, offset + d);
    sum = fmaf(x, x, sum);
  }
  sum = warp_sum(sum);
  if (lane_index() == 0) {
    args.inverse_norm(place.entry, place.head, place.row) = sum == 0.0f ? 0.0f : 1.0f / sqrtf(sum);
  }
}

struct RowConstantArguments {
  Matrix out, grad_out;
  DeviceView<const float, 3> lse, entropy;
  DeviceView<const float, 3> grad_lse, grad_entropy;  // what flows in; null: nothing
  DeviceView<const float, 1> sinks;
  DeviceView<float, 3> constant;
  int batch = 0, heads = 0, rows = 0;
};

// What is the same for every key of a row in the gradient by its logits (backward_tile.h):
//     grad_lse - out . grad_out + grad_entropy (share of the real keys - entropy)
__global__ void row_constant_kernel(const __grid_constant__ RowConstantArguments args) {
  RowPlace place;
  if (!place.find(args.batch, args.heads, args.rows)) return;
  const std::int64_t out = args.out.offset(place.entry, place.head, place.row);
  const std::int64_t grad_out = args.grad_out.offset(place.entry, place.head, place.row);
  float sum = 0.0f;
  for (int d = lane_index(); d < args.out.columns; d += 32) {
    sum = fmaf(load_as_float(args.out.data, args.out.dtype, out + d),
               load_as_float(args.grad_out.data, args.grad_out.dtype, grad_out + d), sum);
  }
  float constant = -warp_sum(sum);
  const float lse = args.lse(place.entry, place.head, place.row);
  if (args.grad_lse) constant += args.grad_lse(place.entry, place.head, place.row);
  if (args.grad_entropy) {
    const float sink = args.sinks ? exp_natural(args.sinks(place.head) - lse) : 0.0f;
    constant += args.grad_entropy(place.entry, place.head, place.row) *
                (1.0f - sink - args.entropy(place.entry, place.head, place.row));
  }
  if (lane_index() == 0) args.constant(place.entry, place.head, place.row) = lse == -INFINITY ? 0.0f : constant;
}

struct SinkArguments {
  DeviceView<const float, 3> lse, constant;
  DeviceView<const float, 1> sinks;
  DeviceView<float, 1> grad_sinks;
  int batch = 0, rows = 0;
};

// One block a head: the sink is one more logit of every row, with no value behind it.
__global__ void sink_gradient_kernel(const __grid_constant__ SinkArguments args) {
  extern __shared__ __align__(16) unsigned char shared_memory[];
  const int head = static_cast<int>(blockIdx.x);
  const float sink = args.sinks(head);
  float sum = 0.0f;
  const std::int64_t count = static_cast<std::int64_t>(args.batch) * args.rows;
  for (std::int64_t index = threadIdx.x; index < count; index += kRowThreads) {
    const int entry = static_cast<int>(index / args.rows), row = static_cast<int>(index % args.rows);
    const float lse = args.lse(entry, head, row);
    if (lse != -INFINITY) sum += exp_natural(sink - lse) * args.constant(entry, head, row);
  }
  sum = block_sum(sum, reinterpret_cast<float*>(shared_memory));
  if (threadIdx.x == 0) args.grad_sinks(head) = sum;
}

}  // namespace rootdk::cuda::portable
