#pragma once

// Memory of a device and work in the order of one of its streams, for modules that do not know the device's runtime.
// src/cuda/ranks/ has it for CUDA.

#include <cstddef>
#include <memory>

#include "rootdk/tensor.h"

namespace rootdk {

// Everything but wait() and the allocations returns when it is queued. Failures throw Error of kind device or
// out_of_memory.
class DeviceQueue {
 public:
  virtual ~DeviceQueue() = default;

  virtual Device device() const = 0;
  virtual void* stream() const = 0;  // as CudaExecution wants it

  // Device memory that what is queued from now on may use; release() takes it back when what is queued so far has
  // ended.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;
  // Memory of the host that the device copies from and to by itself. After a wait() it may be released.
  virtual void* allocate_host(std::size_t bytes) = 0;
  virtual void release_host(void* memory) noexcept = 0;

  // In any direction. Memory of the host that allocate_host() did not give may be reused when the call returns.
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  virtual void fill_zero(void* memory, std::size_t bytes) = 0;
  // Views [batch, heads, rows, width] of this device and one shape, any strides, of one floating type; f32 may also be
  // rounded to bf16 or f16 (copy) and be the sum of those (add).
  virtual void copy_rows(const TensorView& to, const ConstTensorView& from) = 0;
  virtual void add_rows(const TensorView& to, const ConstTensorView& from) = 0;

  // Returns when everything that is queued has ended.
  virtual void wait() = 0;
  // A queue beside this one, which begins after what is queued here so far.
  virtual std::unique_ptr<DeviceQueue> branch() = 0;
  // What is queued here from now on begins after what is queued there so far.
  virtual void join(DeviceQueue& other) = 0;
};

namespace cuda {
// Over a stream of the caller. Without CUDA: an error of kind unsupported.
std::unique_ptr<DeviceQueue> device_queue(int device, void* stream);
}  // namespace cuda

}  // namespace rootdk
