#include "cuda/hopper/forward/fp8.h"

#include <algorithm>
#include <cstdlib>

#include "cuda/hopper/forward/launch.h"
#include "cuda/hopper/forward/tile_counter.h"
#include "cuda/hopper/shared/head_dims.h"
#include "cuda/hopper/shared/make_params.h"
#include "cuda/hopper/shared/refusal.h"
#include "cuda/launch/device.h"
#include "cuda/launch/kernel.h"
#include "cuda/launch/tensor_map.h"

namespace rootdk::cuda::hopper {
namespace {

ForwardKernelHandle kernel_of(int head_dim, Variant variant) {
  switch (head_dim) {
    case 64: return fp8_kernel_of<64>(variant);
    case 96: return fp8_kernel_of<96>(variant);
    case 128: return fp8_kernel_of<128>(variant);
    case 192: return fp8_kernel_of<192>(variant);
    default: return fp8_kernel_of<256>(variant);
  }
}

// A contiguous tensor of bytes in the workspace.
ConstTensorView bytes_view(const ForwardCall& call, std::size_t offset, std::int64_t heads, std::int64_t rows,
                           std::int64_t columns) {
  const std::int64_t batch = call.shape.packed ? 1 : call.shape.batch;
  auto* const data = static_cast<std::uint8_t*>(call.execution.cuda.workspace) + offset;
  const std::int64_t sizes[] = {batch, heads, rows, columns};
  return TensorView(data, DType::f8e4m3, sizes, call.q.device);
}

}  // namespace

std::string fp8_refusal(const ForwardCall& call) {
  const AttentionParams& p = call.params;
  if (p.mask.defined()) return "e4m3 attention does not support a mask";
  if (p.bias.defined()) return "e4m3 attention does not support a bias";
  if (p.logits.relative_table.defined()) return "e4m3 attention does not support a relative table";
  if (p.logits.softcap > 0) return "e4m3 attention does not support a softcap";
  if (p.logits.alibi_slopes.defined()) return "e4m3 attention does not support ALiBi";
  if (call.dropout.threshold > 0) return "e4m3 attention does not support dropout";
  if (!(call.logit_scale > 0)) return text("e4m3 attention needs a positive scale, has ", call.logit_scale);
  if (call.shape.head_dim % 8 != 0) return text("e4m3 attention needs a head_dim in multiples of 8, has ", call.shape.head_dim);
  return {};
}

Fp8Choice choose_fp8(const ForwardCall& call) {
  const int head_dim = padded_dim(kHeadDims, call.shape.head_dim, call.shape.value_dim);
  const bool statistics = call.stats.entropy.defined() || call.stats.sum_p2.defined();
  const ForwardKernelHandle kernel = kernel_of(head_dim, statistics ? Variant::sampled : Variant::ranged);
  return {.kernel = kernel, .workspace = fp8_workspace(call, head_dim, kernel.block_kv)};
}

void launch_fp8(const ForwardCall& call, const Fp8Choice& choice) {
  const AttentionShape& s = call.shape;
  const Fp8Workspace& at = choice.workspace;
  const ForwardKernelHandle& kernel = choice.kernel;
  const auto stream = static_cast<cudaStream_t>(call.execution.cuda.stream);
  auto* const base = static_cast<std::uint8_t*>(call.execution.cuda.workspace);
  const auto floats = [&](std::size_t offset) { return reinterpret_cast<const float*>(base + offset); };

  ForwardParams params = make_params(call);
  params.fp8 = {.q_unit = floats(at.q_unit),
                .q_shift = floats(at.q_shift),
                .k = floats(at.k_scale),
                .v = floats(at.v_scale),
                .v_mean = floats(at.mean_value),
                .key_blocks = at.key_blocks,
                .out_f16 = call.out.dtype == DType::f16};
  if (!getenv("ROOTDK_FP8_NOPREP")) prepare_fp8(call, params, at);
  const bool even = !call.shape.packed && !call.params.kv_lengths.defined() && !call.params.causal;
  const int blocks =
      deal_tiles(call, kernel, even ? nullptr : reinterpret_cast<int*>(base + at.tile_counter), params);

  const std::int64_t keys = static_cast<std::int64_t>(at.key_blocks) * kernel.block_kv;
  const ForwardMaps maps{
      .q = make_tensor_map(bytes_view(call, at.q, s.heads, call.q.size(2), at.head_dim), kernel.block_q, 128),
      .k = make_tensor_map(bytes_view(call, at.k, s.kv_heads, call.k.size(2), at.head_dim), kernel.block_kv, 128),
      .v = make_tensor_map(bytes_view(call, at.v, s.kv_heads, at.head_dim, keys), at.head_dim, kernel.block_kv % 64 == 0 ? 64 : 32),
      .out = {}};
  launch_kernel({.function = kernel.function,
                 .name = "the Hopper e4m3 forward kernel",
                 .grid = dim3(static_cast<unsigned>(blocks)),
                 .block = dim3(static_cast<unsigned>(kernel.threads)),
                 .shared_bytes = kernel.shared_bytes,
                 .stream = stream,
                 .device = call.q.device.index},
                maps, params);
}

}  // namespace rootdk::cuda::hopper
