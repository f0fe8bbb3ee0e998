#pragma once

// The attention fixtures of tests/data/attention: inputs with out, gradients and statistics from PyTorch in float64.

#include <vector>

#include "conformance/conformance.h"

namespace rootdk::test {

struct Fixture {
  AttentionCase problem;  // f32
  Results results;        // out, grad_*, and the statistics under their names here
};

const std::vector<Fixture>& load_fixtures();

// Forward with statistics, then backward on the target's own results: all within 1e-5 of the file, relative to the
// largest magnitude of each tensor.
void expect_fixture(const Fixture& fixture, const Target& target, ConformanceReport& report);

}  // namespace rootdk::test
