// Attention over ranks whose tensors lie on the GPU. The ranks are threads that share the device.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "cuda/cuda_memory.h"
#include "cuda/device_case.h"
#include "distributed/device_ranks.h"
#include "rootdk/error.h"

namespace rootdk::test {
namespace {

void copy_on_device(void* to, const void* from, std::size_t bytes) {
  cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice);
}

// Gradients of k and v are rounded for each call of a rank, and once for the sum.
constexpr double kTolerance = 1e-2;

class DistributedCuda : public HopperTest {};

TEST_F(DistributedCuda, HasTheBitsOfOneCallThroughTheHost) {
  const DeviceRanks where{.memory = &cuda_memory(), .route = Route::host};
  for (const AttentionCase& problem : device_cases({.dtype = DType::bf16, .len = 3300, .head_dim = 128})) {
    expect_bits_of_one_call(where, problem, kTolerance);
  }
}

TEST_F(DistributedCuda, HasTheBitsOfOneCallFromDeviceToDevice) {
  const DeviceRanks where{.memory = &cuda_memory(), .copy = &copy_on_device, .route = Route::device};
  for (const AttentionCase& problem : device_cases({.dtype = DType::f16, .len = 2600, .head_dim = 64})) {
    expect_bits_of_one_call(where, problem, kTolerance);
  }
}

TEST_F(DistributedCuda, IsCloseInF32) {
  const DeviceRanks where{.memory = &cuda_memory(), .route = Route::host};
  const AttentionCase problem = std::move(device_cases({.dtype = DType::f32, .len = 1500, .head_dim = 64})[1]);
  expect_bits_of_one_call(where, problem, 1e-4);
}

TEST_F(DistributedCuda, ReportsWhatIsNotServedOnEveryRank) {
  AttentionCase problem = std::move(device_cases({.dtype = DType::bf16, .len = 1100, .head_dim = 64})[0]);
  problem.scalars.dropout = 0.1;
  try {
    run_device_ranks({.memory = &cuda_memory()}, 2, problem, contiguous_shares(1100, 2));
    FAIL() << "dropout was served";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("dropout is not served across ranks on a GPU"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace rootdk::test
