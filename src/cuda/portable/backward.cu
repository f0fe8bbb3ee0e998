// Choice and launch of the backward pass: one sweep of keys for the gradients of k and v, one of queries for that of q,
// and a pass each for what else is asked. Nothing is added with atomics; every sum has one order.

#include <algorithm>

#include "cuda/common/make_rule.h"
#include "cuda/launch/device.h"
#include "cuda/launch/workspace.h"
#include "cuda/portable/backward_kernels.h"
#include "cuda/portable/element.h"
#include "cuda/portable/host.h"
#include "cuda/portable/inspect.h"
#include "cuda/portable/launch.h"
#include "cuda/portable/portable.h"
#include "cuda/portable/row_passes.h"

namespace rootdk::cuda::portable {
namespace {

// One launch of a kernel that streams tiles.
template <class Kernel, class Arguments>
struct Sweep {
  Kernel kernel;
  Arguments args;
  std::int64_t blocks = 0;  // 0: not asked for
  int shared_bytes = 0;
};

struct BackwardPlan {
  NormArguments q_norms, k_norms;  // of the cosine score
  RowConstantArguments constants;
  Sweep<BackwardKernel, BackwardArguments> keys, queries;
  Sweep<TileSumKernel, TileSumArguments> bias, distance;
  SinkArguments sinks;
  DistanceArguments distances;
  VectorArguments vector;
  InspectArguments inspect;
  std::size_t workspace_bytes = 0;
};

int blocks_of(int length, int rows) { return (length + rows - 1) / rows; }

// Two tiles under way where shared memory allows, else one.
int shared_bytes(int (*bytes_of)(const BackwardArguments&), BackwardArguments& args, int most) {
  args.stages = 2;
  if (bytes_of(args) > most) args.stages = 1;
  return bytes_of(args);
}

// The arguments that every kernel of the pass shares.
BackwardArguments shared_arguments(const BackwardCall& call, BackwardPlan& plan, Workspace& workspace) {
  const bool converts = call.params.score == Score::additive && call.saved.q.dtype != DType::f32;
  BackwardArguments args;
  args.rule = make_rule(call.shape, call.params, call.logit_scale, call.dropout);
  args.q = make_matrix(call.saved.q, converts);
  args.k = make_matrix(call.saved.k, converts);
  args.v = make_matrix(call.saved.v, converts);
  args.grad_out = make_matrix(call.upstream.out, converts);
  if (call.params.score == Score::cosine) {
    plan.q_norms = norm_arguments(call.saved.q, args.q, workspace);
    plan.k_norms = norm_arguments(call.saved.k, args.k, workspace);
    set_norms(args.rule, plan.q_norms, plan.k_norms);
    args.q = plan.q_norms.scaled;
    args.k = plan.k_norms.scaled;
    args.q_exponent = as_const(plan.q_norms.exponent);
    args.k_exponent = as_const(plan.k_norms.exponent);
  }
  const ConstTensorView& q = call.saved.q;
  RowConstantArguments& constants = plan.constants;
  constants = {.out = make_matrix(call.saved.out, converts),
               .grad_out = args.grad_out,
               .lse = device_view<const float, 3>(call.saved.lse),
               .entropy = device_view<const float, 3>(call.saved.entropy),
               .grad_lse = device_view<const float, 3>(call.upstream.lse),
               .grad_entropy = device_view<const float, 3>(call.upstream.entropy),
               .sinks = args.rule.sinks,
               .constant = workspace.rows(q.size(0), q.size(1), q.size(2)),
               .batch = static_cast<int>(q.size(0)),
               .heads = static_cast<int>(q.size(1)),
               .rows = static_cast<int>(q.size(2))};
  args.terms = {
      .lse = constants.lse, .constant = as_const(constants.constant), .entropy_gradient = constants.grad_entropy};
  return args;
}

void plan_keys(const BackwardCall& call, BackwardPlan& plan, const BackwardArguments& shared, int most_shared) {
  if (!call.gradients.k.defined() && !call.gradients.v.defined()) return;
  auto& [kernel, args, blocks, bytes] = plan.keys;
  args = shared;
  args.grad_k = make_matrix(call.gradients.k, true);
  args.grad_v = make_matrix(call.gradients.v, true);
  args.head_columns = kernel.head_columns;
  args.value_columns = kernel.value_columns;
  args.blocks = blocks_of(args.rule.kv_len, kernel.rows);
  args.parts = blocks_of(std::max(args.rule.head_dim, args.rule.value_dim), kernel.columns);
  blocks = std::int64_t{args.rule.batch} * args.rule.kv_heads * args.blocks * args.parts;
  bytes = shared_bytes(kernel.shared_bytes, args, most_shared);
}

void plan_queries(const BackwardCall& call, BackwardPlan& plan, const BackwardArguments& shared, Workspace& workspace,
                  int most_shared) {
  const TensorView& grad_vector = call.gradients.additive_v;
  if (!call.gradients.q.defined() && !grad_vector.defined()) return;
  auto& [kernel, args, blocks, bytes] = plan.queries;
  args = shared;
  args.grad_q = make_matrix(call.gradients.q, true);
  args.head_columns = kernel.head_columns;
  args.value_columns = kernel.value_columns;
  args.blocks = blocks_of(args.rule.q_len, kernel.rows);
  args.parts = blocks_of(args.rule.head_dim, kernel.columns);
  blocks = std::int64_t{args.rule.batch} * args.rule.heads * args.blocks * args.parts;
  bytes = shared_bytes(kernel.shared_bytes, args, most_shared);
  if (!grad_vector.defined()) return;
  args.additive_partial =
      workspace.floats(std::int64_t{args.rule.batch} * args.rule.heads * args.blocks * args.rule.head_dim);
  plan.vector = {.partial = args.additive_partial,
                 .grad_vector = device_view<float, 2>(grad_vector),
                 .batch = args.rule.batch,
                 .heads = args.rule.heads,
                 .blocks = args.blocks,
                 .head_dim = args.rule.head_dim};
}

TileSumArguments tile_sum_arguments(const TileSumKernel& kernel, const BackwardArguments& shared, TileSum kind) {
  TileSumArguments args;
  args.backward = shared;
  args.backward.head_columns = kernel.head_columns;
  args.backward.value_columns = kernel.value_columns;
  args.kind = kind;
  args.row_tiles = blocks_of(shared.rule.q_len, kernel.rows);
  args.key_tiles = blocks_of(shared.rule.kv_len, kernel.keys);
  return args;
}

void plan_bias(const BackwardCall& call, BackwardPlan& plan, const BackwardArguments& shared) {
  const TensorView& grad_bias = call.gradients.bias;
  if (!grad_bias.defined()) return;
  auto& [kernel, args, blocks, bytes] = plan.bias;
  args = tile_sum_arguments(kernel, shared, TileSum::bias);
  args.grad_bias = any_view<4>(grad_bias);
  for (int i = 0; i < 4; ++i) args.bias_shape[i] = static_cast<int>(grad_bias.size(i));
  const std::int64_t row_tiles = grad_bias.size(2) == 1 ? 1 : args.row_tiles;
  const std::int64_t key_tiles = grad_bias.size(3) == 1 ? 1 : args.key_tiles;
  blocks = grad_bias.size(0) * grad_bias.size(1) * row_tiles * key_tiles;
  bytes = kernel.shared_bytes(args.backward);
}

void plan_distances(const BackwardCall& call, BackwardPlan& plan, const BackwardArguments& shared,
                    Workspace& workspace) {
  if (!call.gradients.relative_table.defined() && !call.gradients.alibi_slopes.defined()) return;
  auto& [kernel, args, blocks, bytes] = plan.distance;
  args = tile_sum_arguments(kernel, shared, TileSum::distance);
  const int offsets = kernel.offsets(args.row_tiles, args.key_tiles);
  blocks = std::int64_t{shared.rule.batch} * shared.rule.heads * offsets;
  bytes = kernel.shared_bytes(args.backward);
  args.distance_partial = workspace.floats(blocks * kernel.diagonals);
  plan.distances = {.rule = shared.rule,
                    .partial = args.distance_partial,
                    .offsets = offsets,
                    .diagonals = kernel.diagonals,
                    .key_tiles = args.key_tiles,
                    .stream = kernel.keys,
                    .grad_table = device_view<float, 2>(call.gradients.relative_table),
                    .grad_slopes = device_view<float, 1>(call.gradients.alibi_slopes)};
  if (call.gradients.relative_table.defined()) {
    plan.distances.table_heads = static_cast<int>(call.gradients.relative_table.size(0));
  }
}

BackwardPlan make_plan(const BackwardCall& call, void* memory) {
  Workspace workspace(memory);
  BackwardPlan plan;
  const BackwardArguments shared = shared_arguments(call, plan, workspace);
  with_compute_type(call.saved.q.dtype, shared.rule, [&](auto type, auto additive) {
    using Compute = typename decltype(type)::Type;
    plan.keys.kernel = keys_kernel_for<Compute, additive.value>(shared.rule);
    plan.queries.kernel = queries_kernel_for<Compute, additive.value>(shared.rule);
    plan.bias.kernel = plan.distance.kernel = tile_sum_kernel_for<Compute, additive.value>(shared.rule);
  });
  const int most_shared = device_traits(call.saved.q.device.index).max_shared_bytes;
  plan_keys(call, plan, shared, most_shared);
  plan_queries(call, plan, shared, workspace, most_shared);
  plan_bias(call, plan, shared);
  plan_distances(call, plan, shared, workspace);
  if (call.gradients.sinks.defined()) {
    plan.sinks = {.lse = shared.terms.lse,
                  .constant = shared.terms.constant,
                  .sinks = shared.rule.sinks,
                  .grad_sinks = device_view<float, 1>(call.gradients.sinks),
                  .batch = plan.constants.batch,
                  .heads = plan.constants.heads,
                  .rows = plan.constants.rows};
  }
  plan.inspect = {.rule = shared.rule,
                  .q = shared.q,
                  .k = shared.k,
                  .lse = shared.terms.lse,
                  .column_mass = device_view<float, 3>(call.gradients.column_mass)};
  plan.workspace_bytes = workspace.bytes();
  return plan;
}

std::string refuse_plan(const BackwardCall& call, const BackwardPlan& plan) {
  const std::int64_t blocks = std::max({plan.keys.blocks, plan.queries.blocks, plan.bias.blocks, plan.distance.blocks,
                                        std::int64_t{plan.distances.table_heads} * plan.distances.rule.relative_entries,
                                        call.shape.batch * call.shape.heads * call.shape.kv_len});
  if (std::string reason = refuse_blocks(blocks); !reason.empty()) return reason;
  return refuse_shared_bytes(call.saved.q.device, std::max({plan.keys.shared_bytes, plan.queries.shared_bytes,
                                                            plan.bias.shared_bytes, plan.distance.shared_bytes}));
}

template <class Sweep>
void launch_sweep(const Sweep& sweep, const char* name, cudaStream_t stream) {
  launch(
      sweep.kernel.function, name,
      {.blocks = sweep.blocks, .threads = sweep.kernel.threads, .shared_bytes = sweep.shared_bytes, .stream = stream},
      sweep.args);
}

void launch_plan(const BackwardCall& call, const BackwardPlan& plan) {
  require_workspace(call.execution.cuda, plan.workspace_bytes, "attention_backward");
  const DeviceGuard guard(call.saved.q.device.index);
  const auto stream = static_cast<cudaStream_t>(call.execution.cuda.stream);
  launch_inverse_norms(plan.q_norms, stream);
  launch_inverse_norms(plan.k_norms, stream);
  launch_row_constants(plan.constants, stream);
  launch_sweep(plan.keys, "the kernel for the gradients of k and v", stream);
  launch_sweep(plan.queries, "the kernel for the gradient of q", stream);
  launch_sweep(plan.bias, "the bias gradient kernel", stream);
  launch_sweep(plan.distance, "the distance gradient kernel", stream);
  launch_distance_gradients(plan.distances, stream);
  if (plan.sinks.grad_sinks) launch_sink_gradient(plan.sinks, stream);
  if (plan.vector.grad_vector) launch_vector_gradient(plan.vector, stream);
  if (plan.inspect.column_mass) launch_column_mass(plan.inspect, stream);
}

Answer<BackwardCall> answer(const BackwardCall& call) {
  if (std::string reason = refuse_call(call.saved.q, call.shape, call.params); !reason.empty()) {
    return {.refusal = reason};
  }
  const BackwardPlan plan = make_plan(call, call.execution.cuda.workspace);
  if (std::string reason = refuse_plan(call, plan); !reason.empty()) return {.refusal = reason};
  // A plan points into tensors and workspace, which may be others when the call runs.
  return {.workspace_bytes = plan.workspace_bytes, .run = [](const BackwardCall& accepted) {
            launch_plan(accepted, make_plan(accepted, accepted.execution.cuda.workspace));
          }};
}

}  // namespace

const BackwardImplementation& backward() {
  static const BackwardImplementation implementation{.name = "sm80", .answer = answer};
  return implementation;
}

}  // namespace rootdk::cuda::portable
