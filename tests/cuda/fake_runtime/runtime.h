#pragma once

// A CUDA runtime that runs nothing: it says that there is one Hopper device, and counts what the library asks of it.
// What a call costs the host besides the driver can so be tested, and measured, on a machine without a GPU.

#include <cuda_runtime_api.h>

#include <functional>
#include <vector>

namespace rootdk::test {

struct FakeLaunch {
  const void* function = nullptr;
  dim3 grid, block;
  std::size_t shared_bytes = 0;
};

// What was asked since the last reset.
struct FakeRuntime {
  int attributes = 0;  // of the device
  int limits = 0;      // of a kernel: cudaFuncSetAttribute
  int memsets = 0;
  int entry_points = 0;  // that were looked up in the driver
  int devices_made_current = 0;
  std::vector<const void*> tensor_maps;  // the addresses of those that were encoded
  std::vector<FakeLaunch> launches;
  std::function<void(void** arguments)> at_launch;  // sees the parameters of a kernel

  void reset();  // what at_launch is stays
};

FakeRuntime& fake_runtime();

// How often operator new was called (allocations.cpp).
int& allocations_of_thread();

}  // namespace rootdk::test
