#include "cuda/portable/row_passes.h"

#include "cuda/common/row_statistics.h"
#include "cuda/portable/block_reduce.h"
#include "cuda/portable/launch.h"

namespace rootdk::cuda::portable {
namespace {

// The warp's row of a tensor [batch, heads, rows]; false where there is none left.
struct WarpRow {
  int entry = 0, head = 0, row = 0;

  __device__ bool find(std::int64_t batch, int heads, int rows) {
    const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * (kRowThreads / 32) + warp_index();
    row = static_cast<int>(index % rows);
    head = static_cast<int>(index / rows % heads);
    entry = static_cast<int>(index / rows / heads);
    return entry < batch;
  }
};

// Of the power of two below the largest element; 0 for rows that stay as they are. A NaN counts for nothing in fmaxf.
__device__ int row_exponent(const Matrix& x, std::int64_t offset) {
  float largest = 0.0f;
  for (int d = lane_index(); d < x.columns; d += 32) {
    largest = fmaxf(largest, fabsf(load_as_float(x.data, x.dtype, offset + d)));
  }
  for (int lanes = 16; lanes > 0; lanes /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, lanes));
  if (largest == 0.0f || largest == INFINITY) return 0;
  const int exponent = ilogbf(largest);
  return x.dtype == DType::f16 ? min(exponent, 0) : exponent;
}

// One warp a row.
__global__ void inverse_norm_kernel(const __grid_constant__ NormArguments args) {
  WarpRow warp_row;
  if (!warp_row.find(args.batch, args.heads, args.rows)) return;
  const std::int64_t from = args.x.offset(warp_row.entry, warp_row.head, warp_row.row);
  const std::int64_t to = args.scaled.offset(warp_row.entry, warp_row.head, warp_row.row);
  const int exponent = row_exponent(args.x, from);
  float sum = 0.0f;
  for (int d = lane_index(); d < args.x.columns; d += 32) {
    const float x = ldexpf(load_as_float(args.x.data, args.x.dtype, from + d), -exponent);
    store_float(args.scaled.data, args.scaled.dtype, to + d, x);
    sum = fmaf(x, x, sum);
  }
  sum = warp_sum(sum);
  if (lane_index() == 0) {
    args.inverse_norm(warp_row.entry, warp_row.head, warp_row.row) = sum == 0.0f ? 0.0f : 1.0f / sqrtf(sum);
    args.exponent(warp_row.entry, warp_row.head, warp_row.row) = static_cast<float>(exponent);
  }
}

// out . grad_out. In f32 one lane adds in the order of the columns, as the products of the backward kernels do: where
// one key has all the weight, the two cancel to the last bit.
__device__ float row_dot(const RowConstantArguments& args, const WarpRow& warp_row) {
  const std::int64_t out = args.out.offset(warp_row.entry, warp_row.head, warp_row.row);
  const std::int64_t grad_out = args.grad_out.offset(warp_row.entry, warp_row.head, warp_row.row);
  const bool in_order = args.out.dtype == DType::f32;
  float sum = 0.0f;
  for (int d = in_order ? 0 : lane_index(); d < args.out.columns; d += in_order ? 1 : 32) {
    sum = fmaf(load_as_float(args.grad_out.data, args.grad_out.dtype, grad_out + d),
               load_as_float(args.out.data, args.out.dtype, out + d), sum);
  }
  return in_order ? sum : warp_sum(sum);
}

// One warp a row.
__global__ void row_constant_kernel(const __grid_constant__ RowConstantArguments args) {
  WarpRow warp_row;
  if (!warp_row.find(args.batch, args.heads, args.rows)) return;
  float constant = -row_dot(args, warp_row);
  const float lse = args.lse(warp_row.entry, warp_row.head, warp_row.row);
  if (args.grad_lse) constant += args.grad_lse(warp_row.entry, warp_row.head, warp_row.row);
  if (args.grad_entropy) {
    const float sink = args.sinks ? exp_natural(args.sinks(warp_row.head) - lse) : 0.0f;
    constant += args.grad_entropy(warp_row.entry, warp_row.head, warp_row.row) *
                (1.0f - sink - args.entropy(warp_row.entry, warp_row.head, warp_row.row));
  }
  if (lane_index() == 0)
    args.constant(warp_row.entry, warp_row.head, warp_row.row) = lse == -INFINITY ? 0.0f : constant;
}

// One block a head.
__global__ void sink_gradient_kernel(const __grid_constant__ SinkArguments args) {
  const int head = static_cast<int>(blockIdx.x);
  const float sink = args.sinks(head);
  float sum = 0.0f;
  const std::int64_t count = static_cast<std::int64_t>(args.batch) * args.rows;
  for (std::int64_t index = threadIdx.x; index < count; index += kRowThreads) {
    const int entry = static_cast<int>(index / args.rows), row = static_cast<int>(index % args.rows);
    const float lse = args.lse(entry, head, row);
    if (lse != -INFINITY) sum += exp_natural(sink - lse) * args.constant(entry, head, row);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) args.grad_sinks(head) = sum;
}

// One block an entry of the table. Distances past its ends belong to the outermost entries.
__global__ void table_gradient_kernel(const __grid_constant__ DistanceArguments args) {
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
  sum = block_sum(sum);
  if (threadIdx.x == 0) args.grad_table(table_head, entry) = sum;
}

// One block a head.
__global__ void slope_gradient_kernel(const __grid_constant__ DistanceArguments args) {
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
  sum = block_sum(sum);
  if (threadIdx.x == 0) args.grad_slopes(head) = sum;
}

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

Grid one_warp_a_row(std::int64_t rows, cudaStream_t stream) {
  constexpr int kWarps = kRowThreads / 32;
  return {.blocks = (rows + kWarps - 1) / kWarps, .threads = kRowThreads, .stream = stream};
}

Grid reducing_blocks(std::int64_t blocks, cudaStream_t stream) {
  return {.blocks = blocks, .threads = kRowThreads, .shared_bytes = kReduceSharedBytes, .stream = stream};
}

}  // namespace

void launch_inverse_norms(const NormArguments& args, cudaStream_t stream) {
  const std::int64_t rows = std::int64_t{args.batch} * args.heads * args.rows;
  launch(inverse_norm_kernel, "the norm kernel", one_warp_a_row(rows, stream), args);
}

void launch_row_constants(const RowConstantArguments& args, cudaStream_t stream) {
  const std::int64_t rows = std::int64_t{args.batch} * args.heads * args.rows;
  launch(row_constant_kernel, "the row constant kernel", one_warp_a_row(rows, stream), args);
}

void launch_sink_gradient(const SinkArguments& args, cudaStream_t stream) {
  launch(sink_gradient_kernel, "the sink gradient kernel", reducing_blocks(args.heads, stream), args);
}

void launch_distance_gradients(const DistanceArguments& args, cudaStream_t stream) {
  if (args.grad_table) {
    const std::int64_t entries = std::int64_t{args.table_heads} * args.rule.relative_entries;
    launch(table_gradient_kernel, "the relative table gradient kernel", reducing_blocks(entries, stream), args);
  }
  if (args.grad_slopes) {
    launch(slope_gradient_kernel, "the ALiBi gradient kernel", reducing_blocks(args.rule.heads, stream), args);
  }
}

void launch_vector_gradient(const VectorArguments& args, cudaStream_t stream) {
  launch(vector_gradient_kernel, "the additive vector gradient kernel", reducing_blocks(args.heads, stream), args);
}

}  // namespace rootdk::cuda::portable
