#include "conformance/fp8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "conformance/cases.h"

namespace rootdk::test {
namespace {

double largest_of(const ConstTensorView& view) {
  double largest = 0;
  for (const double x : doubles(view)) {
    if (std::isfinite(x)) largest = std::max(largest, std::fabs(x));
  }
  return largest;
}

// A weight is rounded by at most 2^-4 of it, or by 2^-10 / 256 where it is tiny; the weights of a row add up to 1. All
// else differs by the rounding of f32 and of the output.
double allowed(const std::string& name, const AttentionCase& problem, const Tensor& truth,
               const Fp8Tolerance& tolerance) {
  const double magnitude = largest_of(truth);
  if (name != "out") return tolerance.statistics * std::max(1.0, magnitude);
  const double output = problem.dtype == DType::f32 ? 0x1p-23 : problem.dtype == DType::f16 ? 0x1p-10 : 0x1p-7;
  const double keep = 1 / (1 - problem.scalars.dropout);
  return tolerance.rounded_weights * (0x1p-4 + 0x1p-10) * largest_of(problem.v.view()) * keep * 1.05 +
         output * magnitude;
}

void expect_same_bits(const Results& a, const Results& b) {
  for (const auto& [name, tensor] : a) {
    EXPECT_EQ(std::memcmp(tensor.view().data, b.at(name).view().data, tensor.bytes()), 0)
        << name << " has other bits with 3 threads than with 1";
  }
}

}  // namespace

ConformanceReport expect_fp8_conformance(const Target& target, DType dtype, const Fp8Tolerance& tolerance) {
  ConformanceReport report;
  for (const CaseSpec& spec : conformance_cases()) {
    if (spec.scalars.score != Score::dot) continue;
    AttentionCase problem = make_case(spec, dtype);
    problem.scalars.compute = DType::f8e4m3;
    SCOPED_TRACE(problem.name);
    if (const std::string reason = forward_refusal(problem, target, tolerance.asked); !reason.empty()) {
      report.refused.push_back(problem.name + ", forward: " + reason);
      continue;
    }
    const Results expected = run_forward(problem, {.name = "reference"}, tolerance.asked);
    Target one = target;
    if (!target.memory) one.executor = &shared_executor(1);
    const Results actual = run_forward(problem, one, tolerance.asked);
    for (const auto& [name, truth] : expected) {
      EXPECT_LE(difference(truth, actual.at(name)).largest, allowed(name, problem, truth, tolerance)) << name;
    }
    if (!target.memory) {
      Target three = target;
      three.executor = &shared_executor(3);
      expect_same_bits(actual, run_forward(problem, three, tolerance.asked));
    }
    ++report.forward_runs;
  }
  return report;
}

}  // namespace rootdk::test
