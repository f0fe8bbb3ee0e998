// Every target of this build that the processor can run goes through the conformance grid and the fixtures.

#include <gtest/gtest.h>

#include "conformance/conformance.h"
#include "core/implementation.h"
#include "cpu/targets.h"

namespace rootdk::test {
namespace {

class CpuConformance : public testing::TestWithParam<std::string> {
 protected:
  Target target() const { return {.name = GetParam()}; }

  // Targets with bf16 products refuse other types and the scores that need f32; every other target takes every case.
  void expect_everything(DType dtype) {
    const ConformanceReport report = expect_conformance(target(), dtype);
    if (IsSkipped()) return;
    EXPECT_GT(report.forward_runs, 0);
    EXPECT_GT(report.backward_runs, 0);
    if (has_bf16_products()) return;
    EXPECT_EQ(report.refused, std::vector<std::string>());
  }

  bool has_bf16_products() const {
    for (const cpu::Target& candidate : cpu::targets()) {
      if (candidate.name == GetParam()) return candidate.bf16_products;
    }
    return false;
  }
};

TEST_P(CpuConformance, F32) { expect_everything(DType::f32); }
TEST_P(CpuConformance, Bf16) { expect_everything(DType::bf16); }
TEST_P(CpuConformance, F16) { expect_everything(DType::f16); }
TEST_P(CpuConformance, Fixtures) { expect_fixtures(target()); }

std::vector<std::string> names() {
  std::vector<std::string> result;
  for (const cpu::Target& target : cpu::targets()) result.emplace_back(target.name);
  return result;
}

// Few queries on the kernels of decoding: what they take is right, and the grid has some that they take.
class FewQueries : public testing::TestWithParam<std::string> {
 protected:
  void expect_what_it_takes(DType dtype) {
    const ConformanceReport report = expect_conformance({.name = GetParam()}, dtype);
    if (IsSkipped()) return;
    EXPECT_GT(report.forward_runs, 0);
  }
};

TEST_P(FewQueries, F32) { expect_what_it_takes(DType::f32); }
TEST_P(FewQueries, Bf16) { expect_what_it_takes(DType::bf16); }
TEST_P(FewQueries, F16) { expect_what_it_takes(DType::f16); }

std::vector<std::string> decode_names() {
  std::vector<std::string> result;
  for (const ForwardImplementation& one : cpu::forward_implementations()) {
    if (one.name.starts_with("decode_")) result.emplace_back(one.name);
  }
  return result;
}

INSTANTIATE_TEST_SUITE_P(Targets, FewQueries, testing::ValuesIn(decode_names()),
                         [](const auto& info) { return info.param; });

INSTANTIATE_TEST_SUITE_P(Targets, CpuConformance, testing::ValuesIn(names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace rootdk::test
