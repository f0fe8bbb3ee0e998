#include "cuda/hopper/backward/launch.h"

#include <algorithm>

#include "cuda/common/make_rule.h"
#include "cuda/hopper/shared/make_params.h"
#include "cuda/launch/device.h"
#include "cuda/launch/kernel.h"
#include "cuda/launch/tensor_map.h"

namespace rootdk::cuda::hopper {
namespace {

constexpr double kLog2e = 1.4426950408889634;

// Points the parameters at their arrays in the workspace, and returns its size. With null memory it only counts.
std::size_t lay_out_workspace(const BackwardChoice& choice, void* memory, BackwardParams& params) {
  constexpr std::size_t kAlignment = 256;
  std::size_t bytes = 0;
  const auto take = [&]<class T>(T*& pointer, std::int64_t count) {
    pointer = reinterpret_cast<T*>(static_cast<unsigned char*>(memory) + bytes);
    bytes += (static_cast<std::size_t>(count) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
  };
  const std::int64_t query_tiles = std::int64_t{choice.queries.planes} * choice.queries.tiles;
  const std::int64_t rows = query_tiles * choice.kernel.block_q;
  take(params.ticket, 1);
  take(params.turns, choice.order.sums() * query_tiles);
  take(params.suspects, std::int64_t{choice.keys.planes} * choice.keys.tiles + query_tiles);
  take(params.negative_lse, rows);
  take(params.delta, rows);
  if (choice.grad_entropy) take(params.grad_entropy_rows, rows);
  if (!choice.kernel.queries || !choice.order.rounds)
    take(params.grad_q_tiles, choice.order.sums() * rows * choice.head_dim);
  return bytes;
}

BackwardParams make_params(const BackwardCall& call, const BackwardChoice& choice) {
  BackwardParams params;
  params.rule = make_rule(call.shape, call.params, call.logit_scale, call.dropout);
  params.left = window_limit(call.params.window_left);
  params.right = call.params.causal ? 0 : window_limit(call.params.window_right);
  params.q = row_tensor(call.saved.q);
  params.k = row_tensor(call.saved.k);
  params.v = row_tensor(call.saved.v);
  params.out = row_tensor(call.saved.out);
  params.grad_out = row_tensor(call.upstream.out);
  params.lse = device_view<const float, 3>(call.saved.lse);
  params.grad_lse = device_view<const float, 3>(call.upstream.lse);
  params.entropy = device_view<const float, 3>(call.saved.entropy);
  params.grad_entropy = device_view<const float, 3>(call.upstream.entropy);
  params.grad_q = row_tensor(call.gradients.q);
  params.grad_k = row_tensor(call.gradients.k);
  params.grad_v = row_tensor(call.gradients.v);
  params.scale_log2 = static_cast<float>(call.logit_scale * kLog2e);
  if (call.params.logits.softcap > 0) {
    params.softcap = make_softcap(call.params.logits.softcap, call.logit_scale);
    params.inverse_cap_log2 = 1 / params.softcap.cap_log2;
  }
  params.alibi_in_rows = choice.variant == BackwardVariant::alibi;
  params.queries = choice.queries;
  params.keys = choice.keys;
  params.items = choice.keys.planes * choice.keys.tiles;
  params.heads_together = choice.heads_together;
  params.query_heads_together = choice.query_heads_together;
  params.order = choice.order;
  if (!choice.direct.function) lay_out_workspace(choice, call.execution.cuda.workspace, params);
  return params;
}

}  // namespace

std::size_t backward_workspace(const BackwardChoice& choice) {
  BackwardParams params;
  return choice.direct.function ? 0 : lay_out_workspace(choice, nullptr, params);
}

void launch_backward(const BackwardCall& call, const BackwardChoice& choice) {
  const BackwardKernel& kernel = choice.kernel;
  const BackwardParams params = make_params(call, choice);
  if (choice.direct.function) return launch_direct_backward(call, choice.direct, params);
  const BackwardMaps maps{.q = make_tensor_map(call.saved.q, kernel.block_q, 64),
                          .k = make_tensor_map(call.saved.k, kernel.block_kv, 64),
                          .v = make_tensor_map(call.saved.v, kernel.block_kv, 64),
                          .grad_out = make_tensor_map(call.upstream.out, kernel.block_q, 64)};
  const int device = call.saved.q.device.index;
  const auto query_tiles = static_cast<unsigned>(params.queries.planes * params.queries.tiles);
  KernelLaunch launch{.function = kernel.prepare,
                      .name = "the Hopper kernel that prepares the rows",
                      .grid = dim3(query_tiles),
                      .block = dim3(kPrepareThreads),
                      .stream = static_cast<cudaStream_t>(call.execution.cuda.stream),
                      .device = device};
  launch_kernel(launch, params);

  launch.starts_early = true;
  KernelLaunch keys = launch;
  keys.function = kernel.keys;
  keys.name = "the Hopper backward kernel";
  keys.grid = dim3(static_cast<unsigned>(std::min(params.items, device_traits(device).multiprocessors)));
  keys.block = dim3(static_cast<unsigned>(kernel.threads));
  keys.shared_bytes = kernel.shared_bytes;
  // A block waits for those of other key tiles. A cooperative launch costs the host more.
  keys.all_resident = choice.keys.tiles > 1 && (choice.order.ring || choice.order.ascending > 0);
  launch_kernel(keys, maps, params);

  if (kernel.queries && params.grad_q.data) {
    KernelLaunch queries = launch;
    queries.function = kernel.queries;
    queries.name = "the Hopper kernel of the gradient of q";
    const int blocks = (params.rule.q_len + kQueriesOfBlock - 1) / kQueriesOfBlock;
    queries.grid = dim3(static_cast<unsigned>(params.queries.planes * blocks * params.order.sums()));
    queries.block = dim3(kQueriesThreads);
    queries.shared_bytes = kernel.queries_shared_bytes;
    launch_kernel(queries, maps, params);
  }

  launch.function = kernel.finish;
  launch.name = "the Hopper kernel that finishes the gradients";
  const unsigned suspects = static_cast<unsigned>(params.items) + query_tiles;
  const auto threads = static_cast<unsigned>(kernel.finish_threads);
  launch.grid = dim3((params.order.rounds ? 0 : query_tiles) + (suspects + threads - 1) / threads);
  launch.block = dim3(threads);
  launch_kernel(launch, params);
}

}  // namespace rootdk::cuda::hopper
