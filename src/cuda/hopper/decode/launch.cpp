#include "cuda/hopper/decode/launch.h"

#include "cuda/hopper/decode/partials.h"
#include "cuda/hopper/shared/make_params.h"
#include "cuda/launch/kernel.h"
#include "cuda/launch/tensor_map.h"

namespace rootdk::cuda::hopper {

namespace {

void launch_direct(const ForwardCall& call, const DecodeChoice& choice, const ForwardParams& params) {
  const std::int64_t blocks = call.shape.batch * call.shape.kv_heads * choice.splits;
  launch_kernel({.function = choice.direct.function,
                 .name = "the direct Hopper decode kernel",
                 .grid = dim3(static_cast<unsigned>(blocks)),
                 .block = dim3(static_cast<unsigned>(choice.direct.threads)),
                 .stream = static_cast<cudaStream_t>(call.execution.cuda.stream),
                 .device = call.q.device.index,
                 .cluster = choice.splits,
                 .starts_early = true},
                params);
}

}  // namespace

void launch_decode(const ForwardCall& call, const DecodeChoice& choice) {
  const DecodeKernel& kernel = choice.kernel;
  const auto stream = static_cast<cudaStream_t>(call.execution.cuda.stream);
  ForwardParams params = make_params(call);
  cap_alike(params);
  params.splits = choice.splits;
  params.split_tiles = choice.split_tiles;
  params.query_tiles = params.sequences;
  params.tile_rows = params.q_len * params.group;
  if (choice.is_direct()) return launch_direct(call, choice, params);
  if (choice.merges()) set_partials(params, call.execution.cuda.workspace, choice.rows);
  const CacheKeys no_cache;
  const ForwardMaps maps{.q = {},
                         .k = make_tensor_map(call.k, kernel.block_kv, 64),
                         .v = make_tensor_map(call.v, kernel.block_kv, 64),
                         .out = {}};
  const std::int64_t blocks = call.shape.batch * call.shape.kv_heads * choice.splits;
  launch_kernel({.function = kernel.function,
                 .name = "the Hopper decode kernel",
                 .grid = dim3(static_cast<unsigned>(blocks)),
                 .block = dim3(static_cast<unsigned>(kernel.threads)),
                 .shared_bytes = kernel.shared_bytes,
                 .stream = stream,
                 .device = call.q.device.index,
                 .starts_early = true},
                maps, params, no_cache);
  if (!choice.merges()) return;
  launch_kernel({.function = choice.repairs ? kernel.merge_and_repair : kernel.merge,
                 .name = "the merge of decode",
                 .grid = dim3(static_cast<unsigned>(choice.rows)),
                 .block = dim3(kDecodeMergeThreads),
                 .stream = stream,
                 .device = call.q.device.index,
                 .starts_early = true},
                params, no_cache);
}

}  // namespace rootdk::cuda::hopper
