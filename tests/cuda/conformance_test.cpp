// The conformance grid on the GPU: every case that a path accepts, against the reference.

#include "conformance/conformance.h"

#include <gtest/gtest.h>

#include "cuda/cuda_memory.h"

namespace rootdk::test {
namespace {

class HopperConformance : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (const std::string reason = cuda_absence(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

TEST_P(HopperConformance, Grid) { expect_conformance({.name = "sm90", .memory = &cuda_memory()}, GetParam()); }

INSTANTIATE_TEST_SUITE_P(Cuda, HopperConformance, testing::Values(DType::bf16, DType::f16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace rootdk::test
