#pragma once

// What the choice of a kernel needs to know about a device. Queried once per process.

#include <string>

namespace rootdk::cuda {

struct DeviceTraits {
  int capability = 0;  // 90: Hopper; 0: the device cannot be used
  int multiprocessors = 0;
  int max_shared_bytes = 0;  // of one block
  std::string error;         // why it cannot be used
};

// Never throws: a machine with no driver has traits with an error.
const DeviceTraits& device_traits(int index);

// Makes a device current for the life of the guard.
class DeviceGuard {
 public:
  explicit DeviceGuard(int index);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = -1;  // -1: nothing to restore
};

}  // namespace rootdk::cuda
