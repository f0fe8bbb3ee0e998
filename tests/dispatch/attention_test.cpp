#include "rootdk/attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "conformance/cases.h"
#include "dispatch/choose.h"
#include "rootdk/error.h"

namespace rootdk::test {
namespace {

using testing::HasSubstr;

struct Call {
  explicit Call(DType dtype) : c(make_case({.name = "dispatch"}, dtype)), out(dtype, c.q.memory().shape()) {}
  Explanation ask(const Execution& execution = {}) {
    return explain(c.q.view(), c.k.view(), c.v.view(), out, {}, {}, execution);
  }
  void run(const Execution& execution) { attention(c.q.view(), c.k.view(), c.v.view(), out, {}, {}, execution); }
  AttentionCase c;
  Tensor out;
};

TEST(Dispatch, TheReferenceIsLastAndAcceptsEverything) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    const Explanation e = Call(dtype).ask();
    ASSERT_FALSE(e.candidates.empty());
    EXPECT_EQ(e.candidates.back().name, "reference");
    EXPECT_EQ(e.candidates.back().refusal, "");
    EXPECT_EQ(e.error, "");
  }
}

TEST(Dispatch, TheFirstThatAcceptsIsChosen) {
  const Explanation e = Call(DType::f32).ask();
  for (const auto& candidate : e.candidates) {
    if (candidate.name == e.chosen) break;
    EXPECT_NE(candidate.refusal, "") << candidate.name << " accepts but " << e.chosen << " is chosen";
  }
}

TEST(Dispatch, DoubleRunsOnTheReferenceAlone) { EXPECT_EQ(Call(DType::f64).ask().chosen, "reference"); }

TEST(Dispatch, AForcedTargetIsTheOnlyOneAsked) {
  const Explanation e = Call(DType::f32).ask({.target = "reference"});
  EXPECT_EQ(e.chosen, "reference");
  for (const auto& candidate : e.candidates) {
    EXPECT_EQ(candidate.refusal, candidate.name == "reference" ? "" : "target reference is asked for");
  }
}

TEST(Dispatch, AnUnknownTargetIsAnError) {
  Call call(DType::f32);
  const Explanation e = call.ask({.target = "abacus"});
  EXPECT_EQ(e.chosen, "");
  EXPECT_THAT(e.error, HasSubstr("there is no target abacus in this build; there are"));
  try {
    call.run({.target = "abacus"});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("attention: there is no target abacus in this build; there are"));
    EXPECT_THAT(error.what(), HasSubstr(" reference"));
  }
}

TEST(Dispatch, TensorsOnAnAbsentDeviceAreRefusedByEveryCpuTarget) {
  Call call(DType::f32);
  auto elsewhere = [](auto view) {
    view.device = {DeviceKind::cuda, 7};
    return view;
  };
  const Explanation e = explain(elsewhere(call.c.q.view()), elsewhere(call.c.k.view()), elsewhere(call.c.v.view()),
                                elsewhere(call.out.view()), {}, {}, {.target = "reference"});
  EXPECT_EQ(e.chosen, "");
  EXPECT_EQ(e.candidates.back().refusal, "the tensors do not lie on the CPU");
  const bool has_cuda = e.candidates.front().name.starts_with("sm");
  EXPECT_THAT(e.error, HasSubstr(has_cuda ? "no implementation accepts this call" : "this build has no CUDA kernels"));
}

TEST(Dispatch, CpuCallsWantNoWorkspace) {
  Call call(DType::f32);
  EXPECT_EQ(attention_workspace(call.c.q.view(), call.c.k.view(), call.c.v.view(), call.out), 0u);
}

// The host program's own pool is used, and an explanation never runs anything.
TEST(Dispatch, RunsOnTheExecutorOfTheCaller) {
  class Counting final : public Executor {
   public:
    int threads() const override { return 1; }
    void run(std::int64_t count, Task task, void* context) override {
      ++calls;
      for (std::int64_t i = 0; i < count; ++i) task(context, i);
    }
    int calls = 0;
  } executor;
  Call call(DType::f32);
  call.ask({.target = "reference", .cpu = {.executor = &executor}});
  EXPECT_EQ(executor.calls, 0);
  call.run({.target = "reference", .cpu = {.executor = &executor}});
  EXPECT_EQ(executor.calls, 1);
}

TEST(Dispatch, BadArgumentsAreExplained) {
  Call call(DType::f32);
  const Explanation e = explain(call.c.q.view(), {}, call.c.v.view(), call.out);
  EXPECT_EQ(e.error, "attention: k is not given");
  EXPECT_TRUE(e.candidates.empty());
}

// An allocator that has one block, and notes what it is asked for.
struct Allocator {
  static void* allocate(void* self, std::size_t bytes) {
    auto& allocator = *static_cast<Allocator*>(self);
    allocator.asked.push_back(bytes);
    return allocator.block;
  }
  void* block = nullptr;
  std::vector<std::size_t> asked = {};
};

TEST(Dispatch, TheAllocatorIsAskedWhereTheWorkspaceIsTooSmall) {
  char small[8], large[64];
  Allocator allocator{.block = large};
  CudaExecution execution{.workspace = small,
                          .workspace_bytes = sizeof small,
                          .allocate = Allocator::allocate,
                          .allocate_user = &allocator};
  dispatch::provide_workspace("attention", execution, 0);
  dispatch::provide_workspace("attention", execution, 8);
  EXPECT_EQ(execution.workspace, small);
  EXPECT_TRUE(allocator.asked.empty());
  dispatch::provide_workspace("attention", execution, 9);
  EXPECT_EQ(execution.workspace, large);
  EXPECT_EQ(execution.workspace_bytes, 9u);
  EXPECT_EQ(allocator.asked, std::vector<std::size_t>{9});
}

TEST(Dispatch, AnAllocatorWithoutMemoryIsAnError) {
  Allocator allocator;
  CudaExecution execution{.allocate = Allocator::allocate, .allocate_user = &allocator};
  try {
    dispatch::provide_workspace("attention", execution, 4096);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::out_of_memory);
    EXPECT_THAT(error.what(), HasSubstr("attention: the caller's allocator has no 4096 bytes of device workspace"));
  }
}

TEST(Dispatch, ACallThatNeedsNoWorkspaceAsksForNone) {
  Call call(DType::f32);
  Allocator allocator;
  call.run({.cuda = {.allocate = Allocator::allocate, .allocate_user = &allocator}});
  EXPECT_TRUE(allocator.asked.empty());
}

}  // namespace
}  // namespace rootdk::test
