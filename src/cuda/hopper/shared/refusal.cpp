#include "cuda/hopper/shared/refusal.h"

#include "cuda/launch/device.h"
#include "cuda/launch/tensor_map.h"

namespace rootdk::cuda::hopper {

std::string refuse_device(Device where) {
  if (where.kind != DeviceKind::cuda) return "q is not on a CUDA device";
  const DeviceTraits& device = device_traits(where.index);
  if (!device.error.empty()) return text("device ", where.index, ": ", device.error);
  if (device.capability != 90) {
    return text("device ", where.index, " has compute capability ", device.capability / 10, ".", device.capability % 10,
                ", needs 9.0");
  }
  return {};
}

std::string refuse_layout(std::initializer_list<NamedTensor> tensors) {
  for (const auto& [name, view] : tensors) {
    if (!view.defined()) continue;
    if (std::string reason = tensor_map_refusal(name, view); !reason.empty()) return reason;
  }
  return {};
}

}  // namespace rootdk::cuda::hopper
