#include "cuda/launch/kernel.h"

#include <mutex>
#include <set>
#include <utility>

#include "core/immortal.h"
#include "cuda/launch/check.h"

namespace rootdk::cuda {
namespace {

// What a kernel may use without asking.
constexpr int kDefaultSharedBytes = 48 * 1024, kDefaultCluster = 8;

// Raises a kernel's limits of dynamic shared memory and of blocks in a cluster, once for each device.
void raise_limits(const KernelLaunch& launch) {
  const bool more_shared = launch.shared_bytes > kDefaultSharedBytes, larger_cluster = launch.cluster > kDefaultCluster;
  if (!more_shared && !larger_cluster) return;
  static std::mutex mutex;
  static auto& allowed = immortal(std::set<std::pair<const void*, int>>{});
  const std::lock_guard lock(mutex);
  if (allowed.contains({launch.function, launch.device})) return;
  if (more_shared) {
    check(cudaFuncSetAttribute(launch.function, cudaFuncAttributeMaxDynamicSharedMemorySize, launch.shared_bytes),
          "giving ", launch.name, " ", launch.shared_bytes, " bytes of shared memory");
  }
  if (larger_cluster) {
    check(cudaFuncSetAttribute(launch.function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), "giving ",
          launch.name, " clusters of ", launch.cluster, " blocks");
  }
  allowed.insert({launch.function, launch.device});
}

}  // namespace

void launch_with_arguments(const KernelLaunch& launch, void** arguments) {
  raise_limits(launch);
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
