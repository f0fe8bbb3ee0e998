#pragma once

#include "core/device_queue.h"

namespace rootdk::test {

// Memory of the host as that of a device: work runs when it is queued.
class HostQueue final : public DeviceQueue {
 public:
  Device device() const override { return {}; }
  void* stream() const override { return nullptr; }
  void* allocate(std::size_t bytes) override;
  void release(void* memory) noexcept override;
  void* allocate_host(std::size_t bytes) override { return allocate(bytes); }
  void release_host(void* memory) noexcept override { release(memory); }
  void copy(void* to, const void* from, std::size_t bytes) override;
  void fill_zero(void* memory, std::size_t bytes) override;
  void copy_rows(const TensorView& to, const ConstTensorView& from) override;
  void add_rows(const TensorView& to, const ConstTensorView& from) override;
  void wait() override {}
  std::unique_ptr<DeviceQueue> branch() override { return std::make_unique<HostQueue>(); }
  void join(DeviceQueue&) override {}
};

}  // namespace rootdk::test
