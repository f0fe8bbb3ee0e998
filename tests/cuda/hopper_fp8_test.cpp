// Attention in e4m3 on Hopper: every case of the grid that its kernels accept, beside exact attention of the same
// inputs. Its scales are finer than the reference's (each query, the keys of a tile), so that its numbers are other
// neighbours of the same inputs: it is held to the size of errors that e4m3 has, not to the reference's digits.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "conformance/cases.h"
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

bool all_finite(const ConstTensorView& view) {
  const std::vector<double> values = doubles(view);
  return std::all_of(values.begin(), values.end(), [](double x) { return std::isfinite(x); });
}

double norm_of_difference(const ConstTensorView& a, const ConstTensorView& b) {
  const std::vector<double> x = doubles(a), y = doubles(b);
  double square = 0, size = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    square += (x[i] - y[i]) * (x[i] - y[i]);
    size += x[i] * x[i];
  }
  return std::sqrt(square / std::max(size, 1e-30));
}

double largest_finite(const ConstTensorView& view) {
  double largest = 0;
  for (const double x : doubles(view)) {
    if (std::isfinite(x)) largest = std::max(largest, std::fabs(x));
  }
  return largest;
}

// The grid, and what it lacks: values so much narrower than keys that the second half of their columns has none.
std::vector<CaseSpec> cases() {
  std::vector<CaseSpec> all = conformance_cases();
  CaseSpec narrow{
      .name = "fp8_narrow_values", .heads = 3, .q_len = 192, .kv_len = 200, .head_dim = 192, .value_dim = 64};
  all.push_back(narrow);
  narrow.name = "fp8_narrow_values_packed";
  narrow.q_starts = {0, 20, 170};
  narrow.kv_starts = {0, 40, 190};
  all.push_back(narrow);
  return all;
}

// e4m3 numbers are off by 2^-4 at most and 0.025 in the mean; what that does to weights grows with the logits.
TEST_P(HopperFp8, IsAsCloseToExactAttentionAsE4m3Allows) {
  const Target target{.name = "sm90", .memory = &cuda_memory()};
  int runs = 0;
  std::string refused;
  for (const CaseSpec& spec : cases()) {
    if (spec.scalars.score != Score::dot) continue;
    AttentionCase problem = make_case(spec, GetParam());
    SCOPED_TRACE(problem.name);
    if (!all_finite(problem.q.view()) || !all_finite(problem.k.view()) || !all_finite(problem.v.view())) continue;
    const Results exact = run_forward(problem, {.name = "reference"}, Statistics::rows);
    problem.scalars.compute = DType::f8e4m3;
    refused = forward_refusal(problem, target, Statistics::rows);
    if (!refused.empty()) continue;
    const Results actual = run_forward(problem, target, Statistics::rows);
    const double logits = largest_finite(exact.at("max_logit"));
    EXPECT_LE(norm_of_difference(exact.at("out"), actual.at("out")), 0.1 + 0.05 * logits);
    EXPECT_LE(difference(exact.at("lse"), actual.at("lse")).largest, 0.1 + 0.08 * logits);
    ++runs;
  }
  if (runs == 0) GTEST_SKIP() << "no case is accepted: " << refused;
  EXPECT_GT(runs, 20);
}

// The gradient goes straight through the rounding, so that it is that of exact attention at numbers close by.
TEST_P(HopperFp8, GradientIsAsCloseToTheExactOneAsE4m3Allows) {
  const Target target{.name = "sm90", .memory = &cuda_memory()};
  int runs = 0;
  std::string refused;
  for (const CaseSpec& spec : cases()) {
    if (spec.scalars.score != Score::dot) continue;
    AttentionCase problem = make_case(spec, GetParam());
    SCOPED_TRACE(problem.name);
    if (!all_finite(problem.q.view()) || !all_finite(problem.k.view()) || !all_finite(problem.v.view())) continue;
    Results exact_forward = run_forward(problem, {.name = "reference"}, Statistics::rows);
    const double logits = largest_finite(exact_forward.at("max_logit"));
    const Results exact = run_backward(problem, exact_forward, {.name = "reference"});
    problem.scalars.compute = DType::f8e4m3;
    refused = forward_refusal(problem, target, Statistics::rows);
    if (!refused.empty()) continue;
    Results forward = run_forward(problem, target, Statistics::rows);
    refused = backward_refusal(problem, forward, target);
    if (!refused.empty()) continue;
    const Results actual = run_backward(problem, forward, target);
    // A gradient that is nearly 0 beside the others (one visible key leaves none to q and k) has no digits of its own.
    double largest = 0;
    for (const auto& [name, tensor] : exact) largest = std::max(largest, largest_finite(tensor));
    for (const auto& [name, tensor] : actual) {
      if (largest_finite(exact.at(name)) < largest / 64) continue;
      EXPECT_LE(norm_of_difference(exact.at(name), tensor), 0.15 + 0.08 * logits) << name;
    }
    ++runs;
  }
  if (runs == 0) GTEST_SKIP() << "no case is accepted: " << refused;
  EXPECT_GT(runs, 20);
}

INSTANTIATE_TEST_SUITE_P(Cuda, HopperFp8, testing::Values(DType::bf16, DType::f16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace rootdk::test
