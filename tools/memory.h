#pragma once

// Where a verb's tensors live: the host, or a CUDA device. A verb is written once against this and runs on either.

#include <cstddef>
#include <memory>
#include <span>

#include "rootdk/tensor.h"

namespace rootdk::tools {

// Owns what it hands out until it is destroyed.
class Memory {
 public:
  virtual ~Memory() = default;

  // An undefined view stays undefined. On the host the view itself is handed back: its owner must outlive its use.
  virtual ConstTensorView place(const ConstTensorView& host) = 0;
  virtual TensorView allocate(DType dtype, std::span<const std::int64_t> shape) = 0;  // zeroed
  virtual void* scratch(std::size_t bytes) = 0;
  virtual void wait() = 0;  // until all work on it has ended
  virtual Tensor fetch(const ConstTensorView& view) = 0;
};

// Throws rootdk::Error where there is no such device, or this build has no CUDA.
std::unique_ptr<Memory> make_memory(DeviceKind device);

// Implemented by cuda_memory.cpp, or by no_cuda_memory.cpp where the build has no CUDA.
std::unique_ptr<Memory> make_cuda_memory();

}  // namespace rootdk::tools
