// Attention in e4m3 on Hopper: the grid of every case that its kernels accept, against the reference.

#include <gtest/gtest.h>

#include "conformance/fp8.h"
#include "cuda/cuda_memory.h"

namespace rootdk::test {
namespace {

class HopperFp8 : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (const std::string reason = cuda_absence(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

// Its preparation has other blocks than the reference, so that other numbers are rounded: as far off, and not the same.
TEST_P(HopperFp8, Grid) {
  const Target target{.name = "sm90", .memory = &cuda_memory()};
  for (const Statistics asked : {Statistics::none, Statistics::rows}) {
    const ConformanceReport report =
        expect_fp8_conformance(target, GetParam(), {.rounded_weights = 4, .statistics = 0.1, .asked = asked});
    if (report.forward_runs == 0) GTEST_SKIP() << "no case is accepted: " << report.refused.front();
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, HopperFp8, testing::Values(DType::bf16, DType::f16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace rootdk::test
