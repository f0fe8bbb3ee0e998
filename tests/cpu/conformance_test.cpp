// Every target of this build that the processor can run goes through the conformance grid and the fixtures.

#include <gtest/gtest.h>

#include "conformance/cases.h"
#include "conformance/conformance.h"
#include "conformance/special_values.h"
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

// Few queries on the kernels of decoding: chunks, tiles and their ends, heads in groups, and every feature that they
// have.
std::vector<CaseSpec> few_queries_cases() {
  return {
      {.name = "few_plain", .batch = 2, .q_len = 1, .kv_len = 1100, .head_dim = 64},
      {.name = "few_one_key", .q_len = 3, .kv_len = 1, .head_dim = 40, .value_dim = 24},
      {.name = "few_groups",
       .batch = 3,
       .heads = 8,
       .kv_heads = 2,
       .q_len = 4,
       .kv_len = 77,
       .scalars = {.causal = true},
       .kv_lengths = {77, 0, 30},
       .sinks = true},
      {.name = "few_window",
       .q_len = 5,
       .kv_len = 2100,
       .scalars = {.causal = true, .window_left = 1030},
       .alibi = true},
      {.name = "few_masked",
       .batch = 2,
       .heads = 4,
       .kv_heads = 2,
       .q_len = 3,
       .kv_len = 130,
       .head_dim = 20,
       .mask = {2, 1, 3, 130},
       .bias = {1, 4, 3, 130},
       .length_first = true,
       .pooled_rows = 2,
       .pooled_columns = 5,
       .weight_rows = {1}},
      {.name = "few_hidden_by_bias",
       .q_len = 4,
       .kv_len = 1100,  // more than a chunk; the NaN is in the first
       .bias = {1, 2, 4, 1100},
       .edit = plant_nan_under_minus_infinity},
      {.name = "few_table", .q_len = 2, .kv_len = 50, .relative_heads = 2, .relative_entries = 9},
  };
}

class FewQueries : public testing::TestWithParam<std::string> {
 protected:
  void expect_all(DType dtype) {
    ConformanceReport report;
    for (const CaseSpec& spec : few_queries_cases()) expect_case(make_case(spec, dtype), {.name = GetParam()}, report);
    if (report.forward_runs == 0) GTEST_SKIP() << report.refused.front();
    EXPECT_EQ(report.forward_runs, static_cast<int>(few_queries_cases().size()));
  }
};

TEST_P(FewQueries, F32) { expect_all(DType::f32); }
TEST_P(FewQueries, Bf16) { expect_all(DType::bf16); }
TEST_P(FewQueries, F16) { expect_all(DType::f16); }

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
