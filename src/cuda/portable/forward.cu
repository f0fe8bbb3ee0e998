// Choice and launch of the forward pass with all its statistics.

#include <algorithm>

#include "cuda/common/make_rule.h"
#include "cuda/launch/device.h"
#include "cuda/launch/workspace.h"
#include "cuda/portable/element.h"
#include "cuda/portable/forward_kernels.h"
#include "cuda/portable/host.h"
#include "cuda/portable/inspect.h"
#include "cuda/portable/launch.h"
#include "cuda/portable/portable.h"
#include "cuda/portable/row_passes.h"

namespace rootdk::cuda::portable {
namespace {

// Everything that a call will launch, and the scratch memory it takes.
struct ForwardPlan {
  NormArguments q_norms, k_norms;  // of the cosine score
  ForwardKernelHandle kernel;
  ForwardArguments forward;
  InspectArguments inspect;
  std::size_t workspace_bytes = 0;

  std::int64_t blocks() const {
    return std::int64_t{forward.rule.batch} * forward.rule.heads * forward.row_blocks * forward.parts;
  }
  std::int64_t largest_grid() const {
    const std::int64_t heads = std::int64_t{forward.rule.batch} * forward.rule.heads;
    return std::max({blocks(), heads * forward.rule.kv_len,
                     heads * std::max(1, inspect.map_rows) * std::max(1, inspect.map_columns),
                     std::int64_t{inspect.tensor_batch} * forward.rule.heads * inspect.chosen_rows});
  }
};

bool needs_lse(const AttentionStats& stats) {
  return stats.column_mass.defined() || stats.pooled_map.defined() || stats.weights.defined();
}

InspectArguments make_inspect(const ForwardCall& call, const ForwardArguments& forward) {
  InspectArguments inspect;
  inspect.rule = forward.rule;
  inspect.q = forward.q;
  inspect.k = forward.k;
  inspect.lse.data = forward.lse.data;
  for (int i = 0; i < 3; ++i) inspect.lse.strides[i] = forward.lse.strides[i];
  inspect.column_mass = device_view<float, 3>(call.stats.column_mass);
  inspect.tensor_batch = static_cast<int>(call.q.size(0));
  if (call.stats.pooled_map.defined()) {
    inspect.pooled_map = device_view<float, 4>(call.stats.pooled_map);
    inspect.map_rows = static_cast<int>(call.stats.pooled_map.size(2));
    inspect.map_columns = static_cast<int>(call.stats.pooled_map.size(3));
  }
  if (call.stats.weights.defined()) {
    inspect.weights = device_view<float, 4>(call.stats.weights);
    inspect.weight_rows = device_view<const int, 1>(call.params.stats.weight_rows);
    inspect.chosen_rows = static_cast<int>(call.stats.weights.size(2));
    inspect.weight_keys = static_cast<int>(call.stats.weights.size(3));
  }
  return inspect;
}

ForwardPlan make_plan(const ForwardCall& call, void* memory) {
  Workspace workspace(memory);
  ForwardPlan plan;
  ForwardArguments& args = plan.forward;
  args.rule = make_rule(call.shape, call.params, call.logit_scale, call.dropout);
  const bool converts = call.params.score == Score::additive && call.q.dtype != DType::f32;
  args.q = make_matrix(call.q, converts);
  args.k = make_matrix(call.k, converts);
  args.v = make_matrix(call.v, converts);
  args.out = make_matrix(call.out, converts);
  args.lse = device_view<float, 3>(call.stats.lse);
  args.max_logit = device_view<float, 3>(call.stats.max_logit);
  args.max_weight = device_view<float, 3>(call.stats.max_weight);
  args.entropy = device_view<float, 3>(call.stats.entropy);
  args.sum_p2 = device_view<float, 3>(call.stats.sum_p2);
  if (!call.stats.lse.defined() && needs_lse(call.stats)) {
    args.lse = workspace.rows(call.q.size(0), call.q.size(1), call.q.size(2));
  }
  if (call.params.score == Score::cosine) {
    plan.q_norms = norm_arguments(call.q, args.q, workspace);
    plan.k_norms = norm_arguments(call.k, args.k, workspace);
    set_norms(args.rule, plan.q_norms, plan.k_norms);
    args.q = plan.q_norms.scaled;
    args.k = plan.k_norms.scaled;
  }
  with_compute_type(call.q.dtype, args.rule, [&](auto type, auto additive) {
    plan.kernel = forward_kernel_for<typename decltype(type)::Type, additive.value>(args.rule);
  });
  args.row_blocks = (args.rule.q_len + plan.kernel.rows - 1) / plan.kernel.rows;
  args.parts = (args.rule.value_dim + plan.kernel.columns - 1) / plan.kernel.columns;
  plan.inspect = make_inspect(call, args);
  plan.workspace_bytes = workspace.bytes();
  return plan;
}

void launch_plan(const ForwardCall& call, const ForwardPlan& plan) {
  require_workspace(call.execution.cuda, plan.workspace_bytes, "attention");
  const DeviceGuard guard(call.q.device.index);
  const auto stream = static_cast<cudaStream_t>(call.execution.cuda.stream);
  launch_inverse_norms(plan.q_norms, stream);
  launch_inverse_norms(plan.k_norms, stream);
  launch(plan.kernel.function, "the forward kernel",
         {.blocks = plan.blocks(),
          .threads = plan.kernel.threads,
          .shared_bytes = plan.kernel.shared_bytes,
          .stream = stream},
         plan.forward);
  if (plan.inspect.column_mass) launch_column_mass(plan.inspect, stream);
  if (plan.inspect.pooled_map) launch_pooled_map(plan.inspect, stream);
  if (plan.inspect.weights) launch_weights(plan.inspect, stream);
}

Answer<ForwardCall> answer(const ForwardCall& call) {
  if (std::string reason = refuse_call(call.q, call.shape, call.params); !reason.empty()) return {.refusal = reason};
  const ForwardPlan plan = make_plan(call, call.execution.cuda.workspace);
  if (std::string reason = refuse_blocks(plan.largest_grid()); !reason.empty()) return {.refusal = reason};
  if (std::string reason = refuse_shared_bytes(call.q.device, plan.kernel.shared_bytes); !reason.empty()) {
    return {.refusal = reason};
  }
  // A plan points into tensors and workspace, which may be others when the call runs.
  return {.workspace_bytes = plan.workspace_bytes, .run = [](const ForwardCall& accepted) {
            launch_plan(accepted, make_plan(accepted, accepted.execution.cuda.workspace));
          }};
}

}  // namespace

const ForwardImplementation& forward() {
  static const ForwardImplementation implementation{.name = "sm80", .answer = answer};
  return implementation;
}

}  // namespace rootdk::cuda::portable
