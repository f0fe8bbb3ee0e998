// Statistics never change the result, and are defined where there are no keys.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "conformance/cases.h"
#include "cpu/targets.h"

namespace rootdk::test {
namespace {

std::vector<std::string> runnable_targets() {
  std::vector<std::string> names;
  for (const cpu::Target& target : cpu::targets()) {
    if (target.missing().empty()) names.emplace_back(target.name);
  }
  names.emplace_back("reference");
  return names;
}

class CpuStatistics : public testing::TestWithParam<std::string> {
 protected:
  bool refuses(const AttentionCase& problem) const {
    return !forward_refusal(problem, {.name = GetParam()}, Statistics::all).empty();
  }
};

std::vector<CaseSpec> cases() {
  std::vector<CaseSpec> specs = {
      {.name = "blocks",
       .q_len = 130,
       .kv_len = 300,
       .scalars = {.block_q = 16, .block_kv = 8},
       .block_mask = {1, 2, 9, 38}},
      {.name = "dropout", .q_len = 70, .kv_len = 130, .scalars = {.dropout = 0.3, .seed = 7}},
      {.name = "window_and_sinks", .q_len = 70, .kv_len = 200, .scalars = {.window_left = 40}, .sinks = true},
  };
  for (CaseSpec& spec : specs) spec.pooled_rows = 5, spec.pooled_columns = 7, spec.weight_rows = {1, 3};
  return specs;
}

// Some kernels flush tiny weights to zero while they compute them.
TEST_P(CpuStatistics, LeaveTheCallersFloatingPointAsItWas) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    const AttentionCase problem = make_case({.name = "plain", .q_len = 70, .kv_len = 300}, dtype);
    if (refuses(problem)) continue;
    run_forward(problem, {.name = GetParam()}, Statistics::rows);
    volatile float smallest = std::numeric_limits<float>::min();
    smallest = smallest / 2;
    EXPECT_GT(smallest, 0.0f) << name_of(dtype);
  }
}

TEST_P(CpuStatistics, NeverChangeTheResult) {
  for (const CaseSpec& spec : cases()) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      const AttentionCase problem = make_case(spec, dtype);
      if (refuses(problem)) continue;
      const Target target{.name = GetParam()};
      const Results none = run_forward(problem, target, Statistics::none);
      for (Statistics statistics : {Statistics::rows, Statistics::all}) {
        const Results some = run_forward(problem, target, statistics);
        const Tensor& a = none.at("out");
        EXPECT_EQ(std::memcmp(a.view().data, some.at("out").view().data, a.bytes()), 0)
            << spec.name << " " << name_of(dtype);
      }
    }
  }
}

// Also the addresses of weights without elements: the undefined-behaviour sanitizer looks at this one.
TEST_P(CpuStatistics, AreZeroWithoutKeys) {
  const Tensor q(DType::bf16, {1, 1, 3, 4}), k(DType::bf16, {1, 1, 0, 4});  // the type that every target takes
  Tensor out(DType::bf16, {1, 1, 3, 4}), map(DType::f32, {1, 1, 3, 1}), weights(DType::f32, {1, 1, 3, 0});
  std::ranges::fill(map.values<float>(), std::numeric_limits<float>::quiet_NaN());
  attention(q, k, k, out, {}, {.pooled_map = map, .weights = weights}, {.target = GetParam()});
  for (const float cell : map.values<float>()) EXPECT_EQ(cell, 0.0f);
}

INSTANTIATE_TEST_SUITE_P(Targets, CpuStatistics, testing::ValuesIn(runnable_targets()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace rootdk::test
