#pragma once

// The CUDA runtime's error codes as rootdk::Error, and what a device offers.

#include <cuda_runtime_api.h>

#include "core/check.h"

namespace rootdk::cuda {

inline void check(cudaError_t status, const char* what) {
  require(status == cudaSuccess, "cuda: ", what, ": ", cudaGetErrorString(status));
}

// Makes a tensor's device current for the length of a call.
class DeviceScope {
 public:
  explicit DeviceScope(int index) {
    check(cudaGetDevice(&previous_), "cudaGetDevice");
    if (index != previous_) check(cudaSetDevice(index), "cudaSetDevice");
    changed_ = index != previous_;
  }
  ~DeviceScope() {
    if (changed_) cudaSetDevice(previous_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int previous_ = 0;
  bool changed_ = false;
};

}  // namespace rootdk::cuda
