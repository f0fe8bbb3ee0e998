// Run with ROOTDK_TARGET=reference, ROOTDK_VERBOSE=1 and ROOTDK_THREADS=3, which are read once per process.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "conformance/cases.h"

namespace rootdk::test {
namespace {

class Environment : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::getenv("ROOTDK_TARGET")) GTEST_SKIP() << "ctest sets ROOTDK_TARGET, ROOTDK_VERBOSE and ROOTDK_THREADS";
  }
  AttentionCase c = make_case({.name = "environment"}, DType::f32);
  Tensor out{DType::f32, {1, 2, 33, 32}};
};

TEST_F(Environment, TargetIsForcedUnlessTheCallNamesOne) {
  EXPECT_EQ(explain(c.q.view(), c.k.view(), c.v.view(), out).chosen, "reference");
  const Explanation named = explain(c.q.view(), c.k.view(), c.v.view(), out, {}, {}, {.target = "abacus"});
  EXPECT_THAT(named.error, testing::HasSubstr("there is no target abacus in this build"));
}

TEST_F(Environment, EachChoiceIsPrinted) {
  testing::internal::CaptureStderr();
  attention(c.q.view(), c.k.view(), c.v.view(), out);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "rootdk: attention on reference\n");
}

TEST_F(Environment, ThreadsSetTheDefaultPool) { EXPECT_EQ(default_executor().threads(), 3); }

}  // namespace
}  // namespace rootdk::test
