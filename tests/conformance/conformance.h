#pragma once

// The conformance grid: every implementation, in every element type, computes what the reference computes.
//
//     TEST(Avx512, Bf16) { expect_conformance({.name = "avx512"}, DType::bf16); }
//     TEST(Avx512, Fixtures) { expect_fixtures({.name = "avx512"}, DType::f32); }
//
// Link `rootdk_conformance` (LIBRARIES of rootdk_test). All cases of cases.cpp run, forward with statistics and
// backward, and are compared with the f64 reference on the same rounded inputs: f32 within 2e-6 of the size of what
// is summed (more where logits are large), bf16 and f16 at most twice as far off as the plain computation in that type.
// CPU targets run on 1 and on 3 threads and must give the same bits. Cases that the target refuses are listed with
// its reason; a target that refuses all of them (not built in, wrong machine) skips the test.
// A device backend passes its DeviceMemory (support/device_memory.h): Target{.name = "...", .memory = &memory}.

#include <string>
#include <vector>

#include "support/attention_case.h"

namespace rootdk::test {

// What a run came to. `refused` holds lines "case, forward: reason"; a target that must support everything says
// EXPECT_TRUE(report.refused.empty()).
struct ConformanceReport {
  int forward_runs = 0, backward_runs = 0;
  std::vector<std::string> refused;
};

// `only` keeps the cases whose name contains it (for working on one feature).
ConformanceReport expect_conformance(const Target& target, DType dtype, const std::string& only = "");
// The 80 fixtures: f32 results within 1e-5 (relative to the tensor's largest magnitude) of the file; other types are
// compared with the reference as in the grid.
ConformanceReport expect_fixtures(const Target& target, DType dtype = DType::f32);
// One case of your own by the same rules.
void expect_case(const AttentionCase& problem, const Target& target, ConformanceReport& report);

// What the grid would say about results (forward, or backward on the reference's forward) of a case with its own name.
std::vector<std::string> violations(const AttentionCase& problem, const Results& actual);

}  // namespace rootdk::test
