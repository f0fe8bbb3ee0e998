#pragma once

// Cases on the Hopper path against the reference.

#include <gtest/gtest.h>

#include "support/attention_case.h"

namespace rootdk::test {

Target hopper();

// Skips where there is no Hopper GPU, and says why.
class HopperTest : public testing::Test {
 protected:
  void SetUp() override;
};

// The reference in f64 on the same rounded inputs, with the statistics of rows.
Results run_reference(const AttentionCase& problem);

// Runs the case with statistics and without, which are different kernels, and compares both with the reference.
void expect_close(const AttentionCase& problem);

}  // namespace rootdk::test
