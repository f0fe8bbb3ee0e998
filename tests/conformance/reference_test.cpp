// The reference against the fixtures, and against its own f64 results in every type it reads.

#include <gtest/gtest.h>

#include "conformance/conformance.h"
#include "conformance/fixtures.h"

namespace rootdk::test {
namespace {

const Target kReference{.name = "reference"};

TEST(ReferenceConformance, Fixtures) {
  const ConformanceReport report = expect_fixtures(kReference);
  EXPECT_EQ(load_fixtures().size(), 80u);
  EXPECT_EQ(report.forward_runs, 80);
  EXPECT_EQ(report.backward_runs, 80);
}

class ReferenceTypes : public testing::TestWithParam<DType> {};

TEST_P(ReferenceTypes, Grid) {
  const ConformanceReport report = expect_conformance(kReference, GetParam());
  EXPECT_TRUE(report.refused.empty());
}

INSTANTIATE_TEST_SUITE_P(ReferenceConformance, ReferenceTypes,
                         testing::Values(DType::f32, DType::bf16, DType::f16, DType::f64),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(Conformance, AbsentTargetIsSkipped) { expect_conformance({.name = "no-such-target"}, DType::f32); }

}  // namespace
}  // namespace rootdk::test
