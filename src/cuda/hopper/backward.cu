// The backward pass on Hopper: gradients of q, k and v by its own kernels; those of biases, tables, slopes and sinks,
// and the column mass, by the portable kernels, which read the same saved tensors.

#include <algorithm>

#include "core/check.h"
#include "cuda/hopper/backward_launch.h"
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

std::string refuse(const BackwardCall& call) {
  if (std::string reason = backward_refusal(call); !reason.empty()) return reason;
  return has_others(call.gradients) ? portable::backward().refuse(others_of(call)) : std::string();
}

// The two parts run one after the other and share the workspace.
std::size_t workspace(const BackwardCall& call) {
  const std::size_t own = backward_workspace(choose_backward(call));
  return has_others(call.gradients) ? std::max(own, portable::backward().workspace(others_of(call))) : own;
}

void run(const BackwardCall& call) {
  require_workspace(call.execution.cuda, workspace(call), "attention_backward");
  const DeviceGuard guard(call.saved.q.device.index);
  launch_backward(call, choose_backward(call));
  if (has_others(call.gradients)) portable::backward().run(others_of(call));
}

}  // namespace

const BackwardImplementation& backward() {
  static const BackwardImplementation implementation{
      .name = "sm90", .refuse = refuse, .run = run, .workspace = workspace};
  return implementation;
}

}  // namespace rootdk::cuda::hopper
