#include <cuda_runtime_api.h>

#include <vector>

#include "core/check.h"
#include "tools/memory.h"

namespace rootdk::tools {
namespace {

void check(cudaError_t status, std::string_view what) {
  require(status == cudaSuccess, "--device cuda: ", what, ": ", cudaGetErrorString(status));
}

class CudaMemory final : public Memory {
 public:
  CudaMemory() {
    int devices = 0;
    check(cudaGetDeviceCount(&devices), "cannot count the devices");
    require(devices > 0, "--device cuda: there is no CUDA device");
    check(cudaSetDevice(0), "cannot select device 0");
  }
  ~CudaMemory() override {
    for (void* block : blocks_) cudaFree(block);
  }

  ConstTensorView place(const ConstTensorView& host) override {
    if (!host.defined()) return host;
    const TensorView device = allocate(host.dtype, std::span(host.shape.data(), static_cast<std::size_t>(host.rank)));
    if (const std::size_t bytes = byte_count(host)) {
      check(cudaMemcpy(device.data, host.data, bytes, cudaMemcpyHostToDevice), "cannot copy to the device");
    }
    return device;
  }

  TensorView allocate(DType dtype, std::span<const std::int64_t> shape) override {
    TensorView view(nullptr, dtype, shape, Device{.kind = DeviceKind::cuda, .index = 0});
    view.data = scratch(byte_count(view));
    if (const std::size_t bytes = byte_count(view)) check(cudaMemset(view.data, 0, bytes), "cannot clear memory");
    return view;
  }

  void* scratch(std::size_t bytes) override {
    if (bytes == 0) return nullptr;
    void* block = nullptr;
    check(cudaMalloc(&block, bytes), "cannot allocate " + std::to_string(bytes) + " bytes");
    blocks_.push_back(block);
    return block;
  }

  void wait() override { check(cudaDeviceSynchronize(), "the kernel failed"); }

  Tensor fetch(const ConstTensorView& view) override {
    Tensor result(view.dtype, std::span(view.shape.data(), static_cast<std::size_t>(view.rank)));
    if (result.bytes()) {
      check(cudaMemcpy(result.view().data, view.data, result.bytes(), cudaMemcpyDeviceToHost),
            "cannot copy from the device");
    }
    return result;
  }

 private:
  static std::size_t byte_count(const ConstTensorView& view) {
    return static_cast<std::size_t>(view.elements()) * size_of(view.dtype);
  }

  std::vector<void*> blocks_;
};

}  // namespace

std::unique_ptr<Memory> make_cuda_memory() { return std::make_unique<CudaMemory>(); }

}  // namespace rootdk::tools
