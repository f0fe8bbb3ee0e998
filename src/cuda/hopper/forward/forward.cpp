// attention() on Hopper. A call is either decode (few queries, many keys: ../decode) or forward; which one, and with
// which kernel, is chosen here once.

#include "cuda/hopper/decode/choice.h"
#include "cuda/hopper/decode/launch.h"
#include "cuda/hopper/forward/choice.h"
#include "cuda/hopper/forward/launch.h"
#include "cuda/hopper/hopper.h"
#include "cuda/launch/device.h"
#include "cuda/launch/workspace.h"

namespace rootdk::cuda::hopper {
namespace {

void launch(const ForwardCall& call, const DecodeChoice& choice) { launch_decode(call, choice); }
void launch(const ForwardCall& call, const ForwardChoice& choice) { launch_forward(call, choice); }

template <class Choice>
Answer<ForwardCall> accept(const Choice& choice) {
  return {.workspace_bytes = choice.workspace_bytes(), .run = [choice](const ForwardCall& call) {
            if (call.q.elements() == 0) return;
            require_workspace(call.execution.cuda, choice.workspace_bytes());
            const DeviceGuard guard(call.q.device.index);
            launch(call, choice);
          }};
}

Answer<ForwardCall> answer(const ForwardCall& call) {
  if (std::string reason = forward_refusal(call); !reason.empty()) return {.refusal = reason};
  return is_decode(call) ? accept(choose_decode(call)) : accept(choose_forward(call));
}

}  // namespace

const ForwardImplementation& forward() {
  static const ForwardImplementation implementation{.name = "sm90", .answer = answer};
  return implementation;
}

}  // namespace rootdk::cuda::hopper
