#include "cuda/launch/device.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <map>
#include <mutex>

#include "core/immortal.h"
#include "cuda/launch/check.h"
#include "rootdk/export.h"

namespace rootdk::cuda {
namespace {

DeviceTraits ask_device(int index) {
  DeviceTraits traits;
  int major = 0, minor = 0;
  const auto ask = [&](int& value, cudaDeviceAttr attribute) {
    if (!traits.error.empty()) return;
    const cudaError_t status = cudaDeviceGetAttribute(&value, attribute, index);
    if (status != cudaSuccess) traits.error = cudaGetErrorString(status);
  };
  ask(major, cudaDevAttrComputeCapabilityMajor);
  ask(minor, cudaDevAttrComputeCapabilityMinor);
  ask(traits.multiprocessors, cudaDevAttrMultiProcessorCount);
  ask(traits.max_shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  cudaGetLastError();
  if (traits.error.empty()) traits.capability = 10 * major + minor;
  return traits;
}

}  // namespace

ROOTDK_API const DeviceTraits& device_traits(int index) {
  // Every call asks a few times: what is known is found without the lock.
  constexpr int kQuick = 64;
  static std::atomic<const DeviceTraits*> quick[kQuick];
  const bool has_quick = index >= 0 && index < kQuick;
  if (has_quick) {
    if (const DeviceTraits* traits = quick[index].load(std::memory_order_acquire)) return *traits;
  }
  static std::mutex mutex;
  static auto& known = immortal(std::map<int, DeviceTraits>{});
  const std::lock_guard lock(mutex);
  auto found = known.find(index);
  if (found == known.end()) found = known.emplace(index, ask_device(index)).first;
  if (has_quick) quick[index].store(&found->second, std::memory_order_release);
  return found->second;
}

DeviceGuard::DeviceGuard(int index) {
  int current = 0;
  check(cudaGetDevice(&current), "reading the current device");
  // A thread that has launched nothing yet has no context, which the driver wants for tensor maps: making the device
  // current gives it one.
  thread_local int with_context = -1;
  if (current == index && with_context == index) return;
  check(cudaSetDevice(index), "making device ", index, " current");
  with_context = index;
  if (current != index) previous_ = current;
}

DeviceGuard::~DeviceGuard() {
  if (previous_ >= 0) cudaSetDevice(previous_);
}

}  // namespace rootdk::cuda
