#include "cuda/launch/kernel.h"

#include <mutex>
#include <set>
#include <utility>

#include "core/immortal.h"
#include "cuda/launch/check.h"

namespace rootdk::cuda {
namespace {

constexpr int kDefaultSharedBytes = 48 * 1024;  // what a kernel may use without asking

// Raises a kernel's limit of dynamic shared memory, once for each device.
void allow_shared_bytes(const KernelLaunch& launch) {
  if (launch.shared_bytes <= kDefaultSharedBytes) return;
  static std::mutex mutex;
  static auto& allowed = immortal(std::set<std::pair<const void*, int>>{});
  const std::lock_guard lock(mutex);
  if (allowed.contains({launch.function, launch.device})) return;
  check(cudaFuncSetAttribute(launch.function, cudaFuncAttributeMaxDynamicSharedMemorySize, launch.shared_bytes),
        "giving ", launch.name, " ", launch.shared_bytes, " bytes of shared memory");
  allowed.insert({launch.function, launch.device});
}

}  // namespace

void launch_with_arguments(const KernelLaunch& launch, void** arguments) {
  allow_shared_bytes(launch);
  // Attributes that say nothing cost time in the driver, too.
  cudaLaunchAttribute attributes[3] = {};
  unsigned count = 0;
  if (launch.starts_early) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (launch.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {static_cast<unsigned>(launch.cluster), 1, 1};
  }
  if (launch.all_resident) {
    attributes[count].id = cudaLaunchAttributeCooperative;
    attributes[count++].val.cooperative = 1;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = launch.grid;
  config.blockDim = launch.block;
  config.dynamicSmemBytes = static_cast<std::size_t>(launch.shared_bytes);
  config.stream = launch.stream;
  config.attrs = attributes;
  config.numAttrs = count;
  check(cudaLaunchKernelExC(&config, launch.function, arguments), "launching ", launch.name, " with ", launch.grid.x,
        " x ", launch.grid.y, " x ", launch.grid.z, " blocks");
}

}  // namespace rootdk::cuda
