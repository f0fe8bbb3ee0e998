#include "cuda/device_case.h"

#include <cmath>

#include "conformance/cases.h"
#include "cuda/cuda_memory.h"

namespace rootdk::test {
namespace {

// |actual - expected| / |expected| over all elements; infinite where one is finite and the other is not. Elements that
// are all nearly 0 (the entropy of rows of one key) count as if they were 0.01.
double relative_error(const Tensor& expected, const Tensor& actual) {
  double error = 0, size = 0;
  const auto e = expected.values<double>();
  const auto a = actual.values<double>();
  for (std::size_t i = 0; i < e.size(); ++i) {
    if (!std::isfinite(e[i]) && (e[i] == a[i] || (std::isnan(e[i]) && std::isnan(a[i])))) continue;
    error += (a[i] - e[i]) * (a[i] - e[i]);
    size += e[i] * e[i];
  }
  const double result = std::sqrt(error / std::max(size, 1e-4 * static_cast<double>(e.size())));
  return std::isfinite(result) ? result : INFINITY;
}

// bf16 and f16 round the weights and the output: the errors of two roundings, with room for cancellation.
void expect_close(const Results& expected, const Results& actual, DType dtype) {
  const double rounding = dtype == DType::bf16 ? 4e-3 : 5e-4;
  for (const auto& [name, tensor] : actual) {
    EXPECT_LE(relative_error(expected.at(name), tensor), name == "out" ? rounding : 3e-5) << name;
  }
}

}  // namespace

Target hopper() { return {.name = "sm90", .memory = &cuda_memory()}; }

void HopperTest::SetUp() {
  if (const std::string reason = cuda_absence(); !reason.empty()) GTEST_SKIP() << reason;
  const AttentionCase small = make_case({.name = "probe", .head_dim = 64}, DType::bf16);
  const std::string refusal = forward_refusal(small, hopper(), Statistics::none);
  if (!refusal.empty()) GTEST_SKIP() << "sm90 cannot run here: " << refusal;
}

Results run_reference(const AttentionCase& problem) {
  return run_forward(problem.converted(DType::f64), {.name = "reference"}, Statistics::rows);
}

void expect_close(const AttentionCase& problem) {
  SCOPED_TRACE(problem.name + " " + std::string(name_of(problem.dtype)));
  const Results expected = run_reference(problem);
  for (const Statistics statistics : {Statistics::rows, Statistics::none}) {
    ASSERT_EQ(forward_refusal(problem, hopper(), statistics), "");
    expect_close(expected, run_forward(problem, hopper(), statistics), problem.dtype);
  }
}

}  // namespace rootdk::test
