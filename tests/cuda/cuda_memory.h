#pragma once

#include <string>

#include "support/device_memory.h"

namespace rootdk::test {

// The first CUDA device, through the runtime.
class CudaMemory final : public DeviceMemory {
 public:
  Device device() const override { return {DeviceKind::cuda, 0}; }
  void* allocate(std::size_t bytes) override;
  void release(void* memory) override;
  void upload(void* to, const void* from, std::size_t bytes) override;
  void download(void* to, const void* from, std::size_t bytes) override;
  void synchronize() override;
};

CudaMemory& cuda_memory();

// Why no test can run on a GPU here; empty: there is one.
std::string cuda_absence();

}  // namespace rootdk::test
