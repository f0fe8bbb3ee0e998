#include "tools/memory.h"

#include <cstring>
#include <deque>

namespace rootdk::tools {
namespace {

class HostMemory final : public Memory {
 public:
  ConstTensorView place(const ConstTensorView& host) override { return host; }

  TensorView allocate(DType dtype, std::span<const std::int64_t> shape) override {
    return tensors_.emplace_back(dtype, shape).view();
  }

  void* scratch(std::size_t bytes) override {
    if (bytes == 0) return nullptr;
    const std::int64_t shape[] = {static_cast<std::int64_t>(bytes)};
    return allocate(DType::i8, shape).data;
  }

  void wait() override {}

  Tensor fetch(const ConstTensorView& view) override {
    Tensor result(view.dtype, std::span(view.shape.data(), static_cast<std::size_t>(view.rank)));
    if (result.bytes())
      std::memcpy(result.view().data, view.data, result.bytes());  // allocate() gives contiguous views
    return result;
  }

 private:
  std::deque<Tensor> tensors_;
};

}  // namespace

std::unique_ptr<Memory> make_memory(DeviceKind device) {
  if (device == DeviceKind::cuda) return make_cuda_memory();
  return std::make_unique<HostMemory>();
}

}  // namespace rootdk::tools
