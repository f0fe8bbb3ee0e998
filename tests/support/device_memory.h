#pragma once

// Running a call on tensors that lie on another device, from tests that keep theirs on the CPU.

#include <cstddef>
#include <vector>

#include "rootdk/attention.h"

namespace rootdk::test {

// What a device backend provides to run the conformance grid. Transfers wait until they are done.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual Device device() const = 0;
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* memory) = 0;
  virtual void upload(void* to, const void* from, std::size_t bytes) = 0;
  virtual void download(void* to, const void* from, std::size_t bytes) = 0;
  virtual void synchronize() = 0;
};

// The tensors of one call on the device, strides kept; without a device the views pass through unchanged.
class Placement {
 public:
  explicit Placement(DeviceMemory* memory) : memory_(memory) {}
  ~Placement();
  Placement(const Placement&) = delete;
  Placement& operator=(const Placement&) = delete;

  ConstTensorView input(const ConstTensorView& host);
  TensorView output(const TensorView& host);
  AttentionParams params(AttentionParams host);
  // Scratch memory as the call wants it.
  void add_workspace(Execution& execution, std::size_t bytes);
  // Waits for the call and copies the outputs back.
  void fetch();

 private:
  struct Output {
    void* device = nullptr;
    void* host = nullptr;
    std::size_t bytes = 0;
  };
  void* place(const ConstTensorView& host, std::size_t bytes);

  DeviceMemory* memory_;
  std::vector<void*> blocks_;
  std::vector<Output> outputs_;
};

}  // namespace rootdk::test
