#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

#include "core/device_queue.h"
#include "cuda/launch/check.h"
#include "cuda/launch/device.h"
#include "cuda/ranks/rows.h"

namespace rootdk::cuda {
namespace {

// Making a stream takes as long as a small kernel: those of ended branches are used again.
class StreamPool {
 public:
  cudaStream_t take(int device) {
    {
      const std::lock_guard lock(mutex_);
      auto& idle = idle_[device];
      if (!idle.empty()) {
        const cudaStream_t stream = idle.back();
        idle.pop_back();
        return stream;
      }
    }
    const DeviceGuard guard(device);
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
    return stream;
  }
  void give_back(int device, cudaStream_t stream) {
    const std::lock_guard lock(mutex_);
    idle_[device].push_back(stream);
  }

 private:
  std::mutex mutex_;
  std::map<int, std::vector<cudaStream_t>> idle_;
};

// Pinning memory takes longer than a copy through it: some blocks are kept.
class PinnedPool {
 public:
  void* take(std::size_t bytes) {
    {
      const std::lock_guard lock(mutex_);
      const auto found = idle_.lower_bound(bytes);
      if (found != idle_.end() && found->first <= 2 * bytes + kSmall) {
        void* const memory = found->second;
        kept_ -= found->first;
        taken_.emplace(memory, found->first);
        idle_.erase(found);
        return memory;
      }
    }
    void* memory = nullptr;
    check(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable), "pinning ", bytes, " bytes of the host");
    const std::lock_guard lock(mutex_);
    taken_.emplace(memory, bytes);
    return memory;
  }
  void give_back(void* memory) {
    {
      const std::lock_guard lock(mutex_);
      const auto found = taken_.find(memory);
      if (found == taken_.end()) return;
      const std::size_t bytes = found->second;
      taken_.erase(found);
      if (kept_ + bytes <= kMostKept) {
        kept_ += bytes;
        idle_.emplace(bytes, memory);
        return;
      }
    }
    cudaFreeHost(memory);
  }

 private:
  static constexpr std::size_t kMostKept = std::size_t{1} << 29, kSmall = 1 << 16;
  std::mutex mutex_;
  std::multimap<std::size_t, void*> idle_;
  std::map<void*, std::size_t> taken_;
  std::size_t kept_ = 0;
};

StreamPool& streams() {
  static auto& pool = *new StreamPool;  // outlives every thread: core/immortal.h
  return pool;
}

PinnedPool& pinned() {
  static auto& pool = *new PinnedPool;
  return pool;
}

class CudaQueue final : public DeviceQueue {
 public:
  CudaQueue(int device, cudaStream_t stream, bool is_branch)
      : device_(device), stream_(stream), is_branch_(is_branch) {}
  ~CudaQueue() override {
    if (is_branch_) streams().give_back(device_, stream_);
  }

  Device device() const override { return {DeviceKind::cuda, device_}; }
  void* stream() const override { return stream_; }

  void* allocate(std::size_t bytes) override {
    const DeviceGuard guard(device_);
    void* memory = nullptr;
    check(cudaMallocAsync(&memory, std::max<std::size_t>(bytes, 1), stream_), "allocating ", bytes, " bytes on device ",
          device_);
    return memory;
  }
  void release(void* memory) noexcept override {
    if (memory) cudaFreeAsync(memory, stream_);
  }
  void* allocate_host(std::size_t bytes) override {
    const DeviceGuard guard(device_);
    return pinned().take(std::max<std::size_t>(bytes, 1));
  }
  void release_host(void* memory) noexcept override { pinned().give_back(memory); }

  void copy(void* to, const void* from, std::size_t bytes) override {
    if (bytes == 0) return;
    const DeviceGuard guard(device_);
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "copying ", bytes, " bytes");
  }
  void fill_zero(void* memory, std::size_t bytes) override {
    if (bytes == 0) return;
    const DeviceGuard guard(device_);
    check(cudaMemsetAsync(memory, 0, bytes, stream_), "clearing ", bytes, " bytes");
  }
  void copy_rows(const TensorView& to, const ConstTensorView& from) override {
    const DeviceGuard guard(device_);
    update_rows(to, from, RowUpdate::copy, stream_);
  }
  void add_rows(const TensorView& to, const ConstTensorView& from) override {
    const DeviceGuard guard(device_);
    update_rows(to, from, RowUpdate::add, stream_);
  }

  void wait() override {
    const DeviceGuard guard(device_);
    check(cudaStreamSynchronize(stream_), "waiting for a stream");
  }
  std::unique_ptr<DeviceQueue> branch() override {
    auto queue = std::make_unique<CudaQueue>(device_, streams().take(device_), true);
    queue->join(*this);
    return queue;
  }
  void join(DeviceQueue& other) override {
    const DeviceGuard guard(device_);
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
    cudaError_t status = cudaEventRecord(event, static_cast<cudaStream_t>(other.stream()));
    if (status == cudaSuccess) status = cudaStreamWaitEvent(stream_, event, 0);
    cudaEventDestroy(event);  // its memory stays until the event has come
    check(status, "ordering two streams");
  }

 private:
  int device_;
  cudaStream_t stream_;
  bool is_branch_;
};

}  // namespace

std::unique_ptr<DeviceQueue> device_queue(int device, void* stream) {
  const DeviceTraits& traits = device_traits(device);
  require(traits.error.empty(), ErrorKind::device, "attention: device ", device, ": ", traits.error);
  return std::make_unique<CudaQueue>(device, static_cast<cudaStream_t>(stream), false);
}

}  // namespace rootdk::cuda
