// attention_backward() on Hopper. The kernels of this folder compute the gradients of q, k and v; the portable kernels
// compute those of biases, tables, slopes and sinks, and the column mass, from the same saved tensors.

#include <algorithm>

#include "core/check.h"
#include "cuda/hopper/backward/launch.h"
#include "cuda/hopper/hopper.h"
#include "cuda/launch/device.h"
#include "cuda/launch/workspace.h"
#include "cuda/portable/portable.h"

namespace rootdk::cuda::hopper {
namespace {

bool has_others(const AttentionGradients& g) {
  return g.bias.defined() || g.relative_table.defined() || g.alibi_slopes.defined() || g.sinks.defined() ||
         g.column_mass.defined();
}

// The call without the gradients of q, k and v.
BackwardCall others_of(const BackwardCall& call) {
  BackwardCall others = call;
  others.gradients.q = others.gradients.k = others.gradients.v = {};
  return others;
}

// The Hopper kernels and the portable ones run one after the other and share the workspace.
Answer<BackwardCall> answer(const BackwardCall& call) {
  if (std::string reason = backward_refusal(call); !reason.empty()) return {.refusal = reason};
  const bool with_others = has_others(call.gradients);
  Answer<BackwardCall> others;
  if (with_others) others = portable::backward().answer(others_of(call));
  if (!others.refusal.empty()) return others;
  const BackwardChoice choice = choose_backward(call);
  const std::size_t bytes = std::max(backward_workspace(choice), others.workspace_bytes);
  return {.workspace_bytes = bytes, .run = [=](const BackwardCall& accepted) {
            require_workspace(accepted.execution.cuda, bytes, "attention_backward");
            const DeviceGuard guard(accepted.saved.q.device.index);
            launch_backward(accepted, choice);
            if (with_others) others.run(others_of(accepted));
          }};
}

}  // namespace

const BackwardImplementation& backward() {
  static const BackwardImplementation implementation{.name = "sm90", .answer = answer};
  return implementation;
}

}  // namespace rootdk::cuda::hopper
