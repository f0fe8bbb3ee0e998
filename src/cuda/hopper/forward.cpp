#include "core/check.h"
#include "cuda/hopper/forward_choice.h"
#include "cuda/hopper/forward_launch.h"
#include "cuda/hopper/hopper.h"
#include "cuda/launch/device.h"
#include "cuda/launch/workspace.h"

namespace rootdk::cuda::hopper {
namespace {

std::size_t workspace(const ForwardCall& call) { return choose_forward(call).workspace_bytes(); }

void run(const ForwardCall& call) {
  if (call.q.elements() == 0) return;
  const ForwardChoice choice = choose_forward(call);
  require_workspace(call.execution.cuda, choice.workspace_bytes());
  const DeviceGuard guard(call.q.device.index);
  if (choice.decode) {
    launch_decode(call, *choice.decode);
  } else {
    launch_forward(call, choice);
  }
}

}  // namespace

const ForwardImplementation& forward() {
  static const ForwardImplementation implementation{
      .name = "sm90", .refuse = forward_refusal, .run = run, .workspace = workspace};
  return implementation;
}

}  // namespace rootdk::cuda::hopper
