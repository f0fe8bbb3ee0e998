#include "conformance/conformance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <iostream>
#include <memory>
#include <sstream>

#include "conformance/cases.h"
#include "conformance/fixtures.h"
#include "support/plain_attention.h"

namespace rootdk::test {
namespace {

// Half the distance between neighbours, relative: the error of one rounding.
double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::bf16: return 0x1p-9;
    case DType::f16: return 0x1p-12;
    case DType::f32: return 0x1p-25;
    default: return 0x1p-54;
  }
}

// The smallest step of the type near zero: below it nothing relative holds.
double smallest_step(DType dtype) { return dtype == DType::f16 ? 0x1p-24 : dtype == DType::bf16 ? 0x1p-133 : 0x1p-149; }

// The truth about a case, and how far from it a target may be.
struct Expected {
  Results forward, backward;  // the reference in f64 on the rounded inputs
  PlainResults plain, plain_backward;
  double single = 0;  // what f32 arithmetic is allowed, relative to the size of what is summed
};

Expected make_expected(const AttentionCase& problem) {
  const AttentionCase wide = problem.converted(DType::f64);
  Expected e;
  e.forward = run_forward(wide, {.name = "reference"});
  e.plain = plain_forward(problem);
  // Backward reads what a forward in this type would have saved.
  Results saved;
  saved.emplace("out", convert(convert(e.forward.at("out"), problem.dtype), DType::f64));
  for (const char* name : {"lse", "entropy"}) {
    saved.emplace(name, convert(convert(e.forward.at(name), problem.small()), DType::f64));
  }
  e.backward = run_backward(wide, saved, {.name = "reference"});
  e.plain_backward = plain_backward(problem, saved);
  // Rounding in f32 enters a logit in proportion to its terms, and a weight in proportion to the logit.
  e.single = (problem.dtype == DType::f64 ? 1e-13 : 2e-6) * std::max(1.0, e.plain.logit_size / 8);
  return e;
}

// The grid asks for the same case once per target: the truth is computed once.
const Expected& expected(const AttentionCase& problem, bool cache) {
  static std::map<std::pair<std::string, DType>, std::unique_ptr<Expected>> known;
  auto& slot = known[{problem.name, problem.dtype}];
  if (!slot || !cache) slot = std::make_unique<Expected>(make_expected(problem));
  return *slot;
}

// The types in which a result is stored.
DType stored_type(const std::string& name, const AttentionCase& problem) {
  if (name == "out" || name == "grad_q" || name == "grad_k" || name == "grad_v") return problem.dtype;
  if (name == "grad_bias") return problem.bias.dtype();
  return problem.small();
}

// The largest absolute error a result may have.
double allowed_error(const std::string& name, const AttentionCase& problem, const Expected& e, const Tensor& truth,
                     double magnitude) {
  const PlainResults& plain = e.plain_backward.values.contains(name) ? e.plain_backward : e.plain;
  const DType stored = stored_type(name, problem);
  double allowed = e.single * magnitude + 2 * unit_roundoff(stored) * magnitude + smallest_step(stored);
  if (const auto size = plain.size.find(name); size != plain.size.end()) {
    const double plain_error = difference(truth, plain.values.at(name)).largest;
    allowed += e.single * size->second;
    // The plain way overflows where a type is too narrow; it then measures nothing.
    if (std::isfinite(plain_error)) allowed = std::max(allowed, 2 * plain_error);
    return allowed;
  }
  // Logarithms and entropies: errors of the logits count in full.
  if (name == "lse" || name == "max_logit" || name == "entropy") return e.single * std::max(1.0, 2 * magnitude);
  // Weights: kernels may keep them in the data type.
  return allowed + 2 * unit_roundoff(problem.dtype) * magnitude;
}

std::vector<std::string> compare(const Results& actual, const Results& truth, const AttentionCase& problem,
                                 const Expected& e) {
  std::vector<std::string> lines;
  for (const auto& [name, tensor] : actual) {
    const Tensor& wanted = truth.at(name);
    const Difference d = difference(wanted, tensor);
    const double allowed = allowed_error(name, problem, e, wanted, d.magnitude);
    if (d.largest <= allowed) continue;
    std::ostringstream line;
    line << problem.name << ": " << name << " at element " << d.where << " of " << describe(wanted) << " is "
         << doubles(tensor)[d.where] << ", expected " << doubles(wanted)[d.where] << ": off by " << d.largest
         << ", allowed " << allowed;
    lines.push_back(line.str());
  }
  return lines;
}

void expect_results(const Results& actual, const Results& truth, const AttentionCase& problem, const Expected& e) {
  for (const std::string& line : compare(actual, truth, problem, e)) ADD_FAILURE() << line;
}

void expect_same_bits(const Results& a, const Results& b, const std::string& what) {
  for (const auto& [name, tensor] : a) {
    EXPECT_EQ(std::memcmp(tensor.view().data, b.at(name).view().data, tensor.bytes()), 0)
        << what << ": " << name << " differs between 1 and 3 threads";
  }
}

// Runs a call on one thread and, on the CPU, again on three.
template <class Run>
Results run_on_threads(const Target& target, const std::string& what, Run run) {
  Target one = target;
  if (target.memory) return run(one);
  one.executor = &shared_executor(1);
  Results results = run(one);
  Target three = target;
  three.executor = &shared_executor(3);
  expect_same_bits(results, run(three), what);
  return results;
}

void expect_forward(const AttentionCase& problem, const Target& target, const Expected& e, ConformanceReport& report) {
  // A target may be able to fill the row statistics and not those of columns, or no statistics at all.
  for (Statistics statistics : {Statistics::all, Statistics::rows, Statistics::none}) {
    const std::string refusal = forward_refusal(problem, target, statistics);
    if (refusal.empty()) {
      const Results actual = run_on_threads(target, problem.name + ", forward", [&](const Target& threads) {
        return run_forward(problem, threads, statistics);
      });
      expect_results(actual, e.forward, problem, e);
      ++report.forward_runs;
      return;
    }
    const char* asked = statistics == Statistics::all    ? "forward with all statistics"
                        : statistics == Statistics::rows ? "forward with row statistics"
                                                         : "forward";
    report.refused.push_back(problem.name + ", " + asked + ": " + refusal);
  }
}

void check(const AttentionCase& problem, const Target& target, bool cache, ConformanceReport& report) {
  SCOPED_TRACE(problem.name + " " + std::string(name_of(problem.dtype)) + " on " + target.name);
  const Expected& e = expected(problem, cache);
  expect_forward(problem, target, e, report);
  const std::string refusal = backward_refusal(problem, e.forward, target);
  if (!refusal.empty()) {
    report.refused.push_back(problem.name + ", backward: " + refusal);
    return;
  }
  const Results actual = run_on_threads(target, problem.name + ", backward", [&](const Target& threads) {
    return run_backward(problem, e.forward, threads);
  });
  expect_results(actual, e.backward, problem, e);
  ++report.backward_runs;
}

// Prints what was refused, each reason once with the number of cases.
ConformanceReport finish(const ConformanceReport& report, const Target& target, DType dtype) {
  std::map<std::string, int> reasons;
  for (const std::string& line : report.refused) ++reasons[line.substr(line.find(", ") + 2)];
  std::cout << target.name << " " << name_of(dtype) << ": " << report.forward_runs << " forward and "
            << report.backward_runs << " backward cases ran\n";
  for (const auto& [reason, count] : reasons) std::cout << "  refused " << count << ": " << reason << "\n";
  return report;
}

// A target that runs nothing is not there: the test is skipped with its reason.
bool skip_if_absent(const ConformanceReport& report, const Target& target) {
  if (report.forward_runs + report.backward_runs > 0 || report.refused.empty()) return false;
  [&] { GTEST_SKIP() << "target " << target.name << " cannot run here: " << report.refused.front(); }();
  return true;
}

}  // namespace

std::vector<std::string> violations(const AttentionCase& problem, const Results& actual) {
  const Expected& e = expected(problem, true);
  const bool backward = actual.contains("grad_q");
  return compare(actual, backward ? e.backward : e.forward, problem, e);
}

void expect_case(const AttentionCase& problem, const Target& target, ConformanceReport& report) {
  check(problem, target, false, report);
}

ConformanceReport expect_conformance(const Target& target, DType dtype, const std::string& only) {
  ConformanceReport report;
  for (const CaseSpec& spec : conformance_cases()) {
    if (spec.name.find(only) == std::string::npos) continue;
    check(make_case(spec, dtype), target, true, report);
    // A target that is absent refuses the first cases already: no need to compute the truth of all.
    if (report.forward_runs + report.backward_runs == 0 && report.refused.size() >= 40) break;
  }
  if (skip_if_absent(report, target)) return report;
  return finish(report, target, dtype);
}

ConformanceReport expect_fixtures(const Target& target, DType dtype) {
  ConformanceReport report;
  for (const Fixture& fixture : load_fixtures()) {
    if (dtype != DType::f32) {
      check(fixture.problem.converted(dtype), target, true, report);
      continue;
    }
    expect_fixture(fixture, target, report);
  }
  if (skip_if_absent(report, target)) return report;
  return finish(report, target, dtype);
}

}  // namespace rootdk::test
