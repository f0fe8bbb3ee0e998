#include "cuda/hopper/fp8/prepare.h"

#include <algorithm>

#include "cuda/hopper/fp8/prepare.cuh"
#include "cuda/hopper/fp8/values.cuh"
#include "cuda/hopper/shared/refusal.h"
#include "cuda/launch/check.h"
#include "cuda/launch/kernel.h"

namespace rootdk::cuda::hopper {
namespace {

using namespace preparation;

constexpr std::int64_t kMostQueriesOfTile = 192;

int blocks_of(std::int64_t rows, int block) { return static_cast<int>((rows + block - 1) / block); }

template <class Element>
const void* quantize_function(int lanes) {
  switch (lanes) {
    case 8: return reinterpret_cast<const void*>(&quantize_kernel<Element, 8>);
    case 16: return reinterpret_cast<const void*>(&quantize_kernel<Element, 16>);
    default: return reinterpret_cast<const void*>(&quantize_kernel<Element, 32>);
  }
}

template <class Element>
void launch(const ForwardCall& call, const ForwardParams& params, const Prepared& to) {
  const auto stream = static_cast<cudaStream_t>(call.execution.cuda.stream);
  const auto kv_heads = static_cast<unsigned>(call.shape.kv_heads), heads = static_cast<unsigned>(call.shape.heads),
             sequences = static_cast<unsigned>(call.shape.batch);
  const KernelLaunch common{
      .name = "the preparation of e4m3", .block = dim3(kThreads), .stream = stream, .device = call.q.device.index};
  KernelLaunch reduce = common;
  reduce.function = reinterpret_cast<const void*>(&reduce_kernel<Element>);
  reduce.grid = dim3(static_cast<unsigned>(blocks_of(call.shape.kv_len, kChunk)), kv_heads, sequences);
  launch_kernel(reduce, params, to);
  KernelLaunch finish = common;
  finish.function = reinterpret_cast<const void*>(&finish_kernel);
  finish.grid = dim3(kv_heads, sequences);
  finish.block = dim3(static_cast<unsigned>(to.head_dim * parts_of(to.head_dim)));
  launch_kernel(finish, params, to);
  KernelLaunch quantize = common;
  const int q_blocks = blocks_of(call.shape.q_len, kQueries);
  quantize.function = quantize_function<Element>(lanes_of(to.head_dim));
  quantize.grid =
      dim3(static_cast<unsigned>(q_blocks + 2 * blocks_of(call.shape.kv_len, to.block_kv)), heads, sequences);
  launch_kernel(quantize, params, to, q_blocks);
}

}  // namespace

Fp8Workspace fp8_workspace(const ForwardCall& call, int head_dim, int block_kv) {
  const AttentionShape& s = call.shape;
  const std::int64_t batch = s.packed ? 1 : s.batch, q_rows = call.q.size(2), kv_rows = call.k.size(2);
  Fp8Workspace w;
  w.head_dim = head_dim;
  w.block_kv = block_kv;
  w.key_blocks = s.packed ? static_cast<int>(kv_rows / block_kv + s.batch + 1) : blocks_of(s.kv_len, block_kv);
  w.chunks = s.packed ? static_cast<int>(kv_rows / kChunk + s.batch + 1) : blocks_of(s.kv_len, kChunk);
  const auto take = [&](std::int64_t bytes) {
    const std::size_t at = w.bytes;
    w.bytes += (static_cast<std::size_t>(bytes) + 255) / 256 * 256;
    return at;
  };
  const std::int64_t planes = s.batch * s.kv_heads;
  w.tile_counter = take(sizeof(int));
  w.q = take(batch * s.heads * q_rows * head_dim);
  w.k = take(batch * s.kv_heads * kv_rows * head_dim);
  w.v = take(batch * s.kv_heads * w.key_blocks * block_kv * head_dim);
  // The copy engine takes whole query tiles from an even row on, also of the last rows.
  w.q_units = take((batch * s.heads * q_rows + kMostQueriesOfTile + 2) * static_cast<std::int64_t>(sizeof(float2)));
  w.k_scale = take(batch * s.kv_heads * w.key_blocks * 4);
  w.v_columns = take(planes * 2 * head_dim * 4);
  w.v_multiplier = take(planes * head_dim * 4);
  w.mean_key = take(planes * head_dim * 4);
  w.partials = take(batch * s.kv_heads * w.chunks * head_dim * 16);
  return w;
}

namespace {

Prepared prepared_at(const ForwardCall& call, const Fp8Workspace& at) {
  auto* const base = static_cast<std::uint8_t*>(call.execution.cuda.workspace);
  const auto floats = [&](std::size_t offset) { return reinterpret_cast<float*>(base + offset); };
  return {.q = base + at.q,
          .k = base + at.k,
          .v = base + at.v,
          .q_units = reinterpret_cast<float2*>(base + at.q_units),
          .k_scale = floats(at.k_scale),
          .v_columns = floats(at.v_columns),
          .v_multiplier = floats(at.v_multiplier),
          .mean_key = floats(at.mean_key),
          .partials = reinterpret_cast<float4*>(base + at.partials),
          .head_dim = at.head_dim,
          .block_kv = at.block_kv,
          .key_blocks = at.key_blocks,
          .chunks = at.chunks};
}

template <class Element>
void launch_values(const ForwardCall& call, const ForwardParams& params, const Prepared& from,
                   const AttentionSaved& to) {
  const int q_blocks = blocks_of(call.shape.q_len, kQueries);
  const auto pointer = [](const ConstTensorView& view) { return static_cast<Element*>(const_cast<void*>(view.data)); };
  launch_kernel({.function = reinterpret_cast<const void*>(&values_kernel<Element>),
                 .name = "the values of e4m3",
                 .grid = dim3(static_cast<unsigned>(q_blocks + blocks_of(call.shape.kv_len, from.block_kv)),
                              static_cast<unsigned>(call.shape.heads), static_cast<unsigned>(call.shape.batch)),
                 .block = dim3(kThreads),
                 .stream = static_cast<cudaStream_t>(call.execution.cuda.stream),
                 .device = call.q.device.index},
                params, from, q_blocks, pointer(to.q), pointer(to.k), pointer(to.v),
                static_cast<float*>(const_cast<void*>(to.lse.data)));
}

}  // namespace

std::string refuse_preparation(const AttentionShape& shape) {
  constexpr std::int64_t kMostBlocks = 65535;  // of a grid's second and third dimension: heads, sequences
  if (std::max(shape.heads, shape.batch) <= kMostBlocks) return {};
  return text("heads ", shape.heads, " or batch ", shape.batch, " is above ", kMostBlocks);
}

void prepare_fp8(const ForwardCall& call, const ForwardParams& params, const Fp8Workspace& at) {
  const Prepared to = prepared_at(call, at);
  if (call.q.dtype == DType::bf16) {
    launch<__nv_bfloat16>(call, params, to);
  } else {
    launch<__half>(call, params, to);
  }
}

void write_fp8_values(const ForwardCall& call, const ForwardParams& params, const Fp8Workspace& at,
                      const AttentionSaved& to) {
  const Prepared from = prepared_at(call, at);
  if (call.shape.packed || call.params.kv_lengths.defined()) {  // rows that belong to no sequence must be finite
    const auto stream = static_cast<cudaStream_t>(call.execution.cuda.stream);
    for (const ConstTensorView& view : {to.q, to.k, to.v}) {
      check(cudaMemsetAsync(const_cast<void*>(view.data), 0, static_cast<std::size_t>(view.elements()) * 2, stream),
            "clearing the values of e4m3");
    }
  }
  if (call.q.dtype == DType::bf16) {
    launch_values<__nv_bfloat16>(call, params, from, to);
  } else {
    launch_values<__half>(call, params, from, to);
  }
}

}  // namespace rootdk::cuda::hopper
