// Attention in e4m3 on Hopper: q, k and v are prepared in the workspace, then the forward kernel runs on e4m3 products.

#include <string>

#include "cuda/hopper/forward/choice.h"
#include "cuda/hopper/forward/launch.h"
#include "cuda/hopper/fp8/kernels.h"
#include "cuda/hopper/fp8/prepare.h"
#include "cuda/hopper/hopper.h"
#include "cuda/hopper/shared/fp8_layout.h"
#include "cuda/hopper/shared/head_dims.h"
#include "cuda/hopper/shared/make_params.h"
#include "cuda/hopper/shared/refusal.h"
#include "cuda/launch/device.h"
#include "cuda/launch/kernel.h"
#include "cuda/launch/tensor_map.h"
#include "cuda/launch/workspace.h"

namespace rootdk::cuda::hopper {
namespace {

ForwardKernelHandle kernel_of(int head_dim, Variant variant, bool long_rows) {
  switch (head_dim) {
    case 64: return fp8_kernel_of<64>(variant, long_rows);
    case 96: return fp8_kernel_of<96>(variant, long_rows);
    case 128: return fp8_kernel_of<128>(variant, long_rows);
    case 192: return fp8_kernel_of<192>(variant, long_rows);
    default: return fp8_kernel_of<256>(variant, long_rows);
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

struct Fp8Choice {
  ForwardKernelHandle kernel;
  Fp8Workspace workspace;
};

// Why the e4m3 kernels cannot run a call; empty: they can.
std::string refusal_of(const Fp8ForwardCall& call) {
  const AttentionParams& p = call.params;
  if (call.quantised()) return "q, k and v are e4m3 already; hand over bf16 or f16";
  if (std::string reason = forward_refusal(call); !reason.empty()) return reason;
  if (call.out.dtype != DType::bf16 && call.out.dtype != DType::f16) {
    return text("out is ", name_of(call.out.dtype), ", needs bf16 or f16");
  }
  if (p.fp8.rotate) return "rotation is not supported";
  if (p.mask.defined()) return "a mask is not supported";
  if (p.bias.defined()) return "a bias is not supported";
  if (p.logits.relative_table.defined()) return "a relative table is not supported";
  if (p.logits.softcap > 0) return "a softcap is not supported";
  if (p.logits.alibi_slopes.defined()) return "ALiBi is not supported";
  if (call.dropout.threshold > 0) return "dropout is not supported";
  if (!(call.logit_scale > 0)) return text("the scale ", call.logit_scale, " is not positive");
  if (call.shape.head_dim % 8 != 0) return text("head_dim ", call.shape.head_dim, " is not a multiple of 8");
  return refuse_preparation(call.shape);
}

Fp8Choice choose(const ForwardCall& call) {
  const int head_dim = padded_dim(kHeadDims, call.shape.head_dim, call.shape.value_dim);
  const bool statistics = call.stats.entropy.defined() || call.stats.sum_p2.defined();
  const bool long_rows = call.shape.kv_len > static_cast<std::int64_t>(kFp8TilesOfSum) * fp8_keys_of_scale(head_dim);
  const ForwardKernelHandle kernel = kernel_of(head_dim, statistics ? Variant::sampled : Variant::ranged, long_rows);
  return {.kernel = kernel, .workspace = fp8_workspace(call, head_dim, kernel.block_kv)};
}

void launch(const ForwardCall& call, const Fp8Choice& choice) {
  const AttentionShape& s = call.shape;
  const Fp8Workspace& at = choice.workspace;
  const ForwardKernelHandle& kernel = choice.kernel;
  const auto stream = static_cast<cudaStream_t>(call.execution.cuda.stream);
  auto* const base = static_cast<std::uint8_t*>(call.execution.cuda.workspace);
  const auto floats = [&](std::size_t offset) { return reinterpret_cast<const float*>(base + offset); };

  ForwardParams params = make_params(call);
  params.fp8 = {.q = reinterpret_cast<const float2*>(base + at.q_units),
                .k = floats(at.k_scale),
                .v_columns = floats(at.v_columns),
                .key_blocks = at.key_blocks,
                .out_f16 = call.out.dtype == DType::f16};
  prepare_fp8(call, params, at);
  const bool even = !call.shape.packed && !call.params.kv_lengths.defined() && !call.params.causal;
  const int blocks = deal_tiles(call, kernel, even ? nullptr : reinterpret_cast<int*>(base + at.tile_counter), params);

  const std::int64_t keys = static_cast<std::int64_t>(at.key_blocks) * kernel.block_kv;
  const ForwardMaps maps{
      .q = make_tensor_map(bytes_view(call, at.q, s.heads, call.q.size(2), at.head_dim), kernel.block_q, 128),
      .k = make_tensor_map(bytes_view(call, at.k, s.kv_heads, call.k.size(2), at.head_dim), kernel.block_kv, 128),
      .v = make_tensor_map(bytes_view(call, at.v, s.kv_heads, at.head_dim, keys), at.head_dim,
                           kernel.block_kv % 64 == 0 ? 64 : 32),
      .out = make_tensor_map(call.out, 16, 64)};
  launch_kernel({.function = kernel.function,
                 .name = "the Hopper e4m3 forward kernel",
                 .grid = dim3(static_cast<unsigned>(blocks)),
                 .block = dim3(static_cast<unsigned>(kernel.threads)),
                 .shared_bytes = kernel.shared_bytes,
                 .stream = stream,
                 .device = call.q.device.index},
                maps, params);
}

Answer<Fp8ForwardCall> answer(const Fp8ForwardCall& call) {
  if (std::string reason = refusal_of(call); !reason.empty()) return {.refusal = reason};
  const Fp8Choice choice = choose(call);
  return {.workspace_bytes = choice.workspace.bytes, .run = [choice](const Fp8ForwardCall& ready) {
            if (ready.q.elements() == 0) return;
            require_workspace(ready.execution.cuda, choice.workspace.bytes);
            const DeviceGuard guard(ready.q.device.index);
            launch(ready, choice);
          }};
}

}  // namespace

int fp8_keys_of_scale(int head_dim) { return kernel_of(head_dim, Variant::ranged, false).block_kv; }

const Fp8ForwardImplementation& fp8_forward() {
  static const Fp8ForwardImplementation implementation{.name = "sm90", .answer = answer};
  return implementation;
}

}  // namespace rootdk::cuda::hopper
