#pragma once

// The last, fixed-order step of gradients that came in parts: relative table and ALiBi slopes from the sums by
// distance, the additive score's vector from its blocks.

#include "cuda/portable/row_kernels.h"

namespace rootdk::cuda::portable {

struct DistanceArguments {
  LogitRule rule;
  const float* partial = nullptr;  // [batch, heads, offsets, diagonals]
  int offsets = 0, diagonals = 0;
  int key_tiles = 0, stream = 0;    // what numbers the offsets: DistanceLayout
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

// One block an entry of the table. Distances past its ends belong to the outermost entries.
__global__ void table_gradient_kernel(const __grid_constant__ DistanceArguments args) {
  extern __shared__ __align__(16) unsigned char shared_memory[];
  const LogitRule& rule = args.rule;
  const int entry = static_cast<int>(blockIdx.x) % rule.relative_entries;
  const int table_head = static_cast<int>(blockIdx.x) / rule.relative_entries;
  constexpr int kFar = 1 << 30;
  const int low = entry == 0 ? -kFar : entry - rule.relative_zero;
  const int high = entry == rule.relative_entries - 1 ? kFar : entry - rule.relative_zero;
  const int first_head = args.table_heads == 1 ? 0 : table_head;
  const int last_head = args.table_heads == 1 ? rule.heads - 1 : table_head;
  float sum = 0.0f;
  for (int b = 0; b < rule.batch; ++b) {
    const Sequence sequence = rule.sequence(b);
    for (int h = first_head; h <= last_head; ++h) {
      for (int offset = 0; offset < args.offsets; ++offset) {
        const int distance = args.first_distance(sequence, offset);
        if (distance > high || distance + args.diagonals - 1 < low) continue;
        const float* sums = args.sums(b, h, offset);
        for (int d = static_cast<int>(threadIdx.x); d < args.diagonals; d += kRowThreads) {
          if (distance + d >= low && distance + d <= high) sum += sums[d];
        }
      }
    }
  }
  sum = block_sum(sum, reinterpret_cast<float*>(shared_memory));
  if (threadIdx.x == 0) args.grad_table(table_head, entry) = sum;
}

// One block a head.
__global__ void slope_gradient_kernel(const __grid_constant__ DistanceArguments args) {
  extern __shared__ __align__(16) unsigned char shared_memory[];
  const int head = static_cast<int>(blockIdx.x);
  float sum = 0.0f;
  for (int b = 0; b < args.rule.batch; ++b) {
    const Sequence sequence = args.rule.sequence(b);
    for (int offset = 0; offset < args.offsets; ++offset) {
      const int distance = args.first_distance(sequence, offset);
      const float* sums = args.sums(b, head, offset);
      for (int d = static_cast<int>(threadIdx.x); d < args.diagonals; d += kRowThreads) {
        sum -= static_cast<float>(abs(distance + d)) * sums[d];
      }
    }
  }
  sum = block_sum(sum, reinterpret_cast<float*>(shared_memory));
  if (threadIdx.x == 0) args.grad_slopes(head) = sum;
}

struct VectorArguments {
  const float* partial = nullptr;  // [batch, heads, blocks, head_dim]
  DeviceView<float, 2> grad_vector;
  int batch = 0, heads = 0, blocks = 0, head_dim = 0;
};

// One block a head, a thread an entry of the vector.
__global__ void vector_gradient_kernel(const __grid_constant__ VectorArguments args) {
  const int head = static_cast<int>(blockIdx.x);
  for (int d = static_cast<int>(threadIdx.x); d < args.head_dim; d += kRowThreads) {
    float sum = 0.0f;
    for (int b = 0; b < args.batch; ++b) {
      for (int block = 0; block < args.blocks; ++block) {
        sum += args.partial[((static_cast<std::int64_t>(b) * args.heads + head) * args.blocks + block) * args.head_dim +
                            d];
      }
    }
    args.grad_vector(head, d) = sum;
  }
}

}  // namespace rootdk::cuda::portable
