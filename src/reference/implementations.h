#pragma once

#include <string>

#include "core/implementation.h"

namespace rootdk::reference {

// The reference runs every call, on the CPU.
inline std::string refuse_device(Device device) {
  return device.kind == DeviceKind::cpu ? "" : "the tensors do not lie on the CPU";
}

}  // namespace rootdk::reference
