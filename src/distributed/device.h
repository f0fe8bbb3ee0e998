#pragma once

// Attention over ranks whose tensors lie on a device. Keys and values are gathered, and the rows of a rank are calls of
// attention() over the keys that they see. So is the backward pass, whose gradients of k and v go to the ranks that
// hold the keys and are added up there in order of the ranks (docs/decisions/0032).

#include "core/device_queue.h"
#include "distributed/call.h"

namespace rootdk::distributed {

// A call whose tensors lie on a device, before the ranks agree on it.
struct DeviceSide {
  std::unique_ptr<DeviceQueue> queue{};  // null: the call is one of the CPU
  // Copies in memory of the host, which every rank reads. They lay beside the tensors of the call.
  Tensor q_starts{}, kv_starts{};
};
// Throws where something is asked for that is not served there. Where it is, `params` get starts on the host.
DeviceSide device_side(std::string_view operation, const ConstTensorView& q, const DistributedParams& distributed,
                       const AttentionStats& stats, const AttentionGradients& gradients, const Execution& execution,
                       AttentionParams& params);

void attend_on_device(Transport& transport, const Call& call, DeviceQueue& queue, const ConstTensorView& q,
                      const ConstTensorView& k, const ConstTensorView& v, const TensorView& out,
                      const AttentionStats& stats);
void backward_on_device(Transport& transport, const Call& call, DeviceQueue& queue, const AttentionSaved& saved,
                        const AttentionUpstream& upstream, const AttentionGradients& gradients);

}  // namespace rootdk::distributed
