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
  narrow.q_starts = {0, 20, 192};
  narrow.kv_starts = {0, 40, 200};
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

// Magnitudes 1, 1/2, 1/4 and 1/8 of random signs: e4m3 has them exactly beside a largest of 1, which every row of q and
// k and every column of v has. Keys and values come in pairs x, -x, so that their means are exactly 0.
void plant_exact_numbers(AttentionCase& problem) {
  const auto plant = [](DataTensor& tensor, bool in_pairs, bool by_column) {
    const TensorView view = tensor.view();
    const std::int64_t rows = view.size(2), columns = view.size(3), planes = view.size(0) * view.size(1);
    double* const values = static_cast<double*>(tensor.memory().view().data);
    for (std::int64_t i = 0; i < planes * rows * columns; ++i) {
      const std::int64_t row = i / columns % rows, column = i % columns;
      const bool largest = by_column ? row < 2 : column == row / 2 % columns;
      const double size = largest ? 1 : std::exp2(-std::min(3.0, std::floor(2 * std::fabs(values[i]))));
      values[i] = in_pairs && row % 2 == 1 ? -values[i - columns] : std::copysign(size, values[i]);
    }
  };
  plant(problem.q, false, false);
  plant(problem.k, true, false);
  plant(problem.v, true, true);
}

// Where the rounding is exact, Hopper and the CPU take the gradient at the same numbers, and what is left is the
// rounding of the 16-bit kernels.
TEST_P(HopperFp8, GradientIsTheCpusWhereNumbersAreExact) {
  const Target target{.name = "sm90", .memory = &cuda_memory()}, cpu{.name = "fp8_cpu"};
  int runs = 0;
  std::string refused;
  for (const bool causal : {false, true}) {
    for (const std::int64_t head_dim : {64, 80, 128, 256}) {
      CaseSpec spec{.name = "fp8_exact_numbers", .batch = 2, .heads = 4, .kv_heads = 2, .q_len = 200, .kv_len = 330};
      spec.head_dim = head_dim;
      spec.scalars.causal = causal;
      spec.scalars.compute = DType::f8e4m3;
      spec.edit = plant_exact_numbers;
      const AttentionCase problem = make_case(spec, GetParam());
      SCOPED_TRACE(testing::Message() << "head_dim " << head_dim << (causal ? ", causal" : ""));
      const Results forward = run_forward(problem, cpu, Statistics::rows);
      refused = backward_refusal(problem, forward, target);
      if (!refused.empty()) continue;
      const Results expected = run_backward(problem, forward, cpu), actual = run_backward(problem, forward, target);
      for (const auto& [name, tensor] : actual) {
        EXPECT_LE(norm_of_difference(expected.at(name), tensor), 0.02) << name;
      }
      ++runs;
    }
  }
  if (runs == 0) GTEST_SKIP() << "no case is accepted: " << refused;
}

INSTANTIATE_TEST_SUITE_P(Cuda, HopperFp8, testing::Values(DType::bf16, DType::f16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace rootdk::test
