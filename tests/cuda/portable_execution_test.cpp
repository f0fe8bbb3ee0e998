// How the portable path runs: the same bits every time and under load, the caller's stream, CUDA graphs, the workspace
// it asks for, and what it refuses.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "conformance/cases.h"
#include "cuda/cuda_memory.h"
#include "cuda/device_call.h"
#include "rootdk/error.h"

namespace rootdk::test {
namespace {

CaseSpec busy_spec(std::int64_t head_dim) {
  CaseSpec spec{.name = "busy",
                .batch = 2,
                .heads = 8,
                .kv_heads = 2,
                .q_len = 300,
                .kv_len = 420,
                .head_dim = head_dim,
                .bias = {1, 8, 1, 420},
                .relative_heads = 8,
                .relative_entries = 65,
                .sinks = true};
  spec.scalars.causal = true;
  spec.scalars.dropout = 0.1;
  spec.scalars.logits.relative_zero = 32;
  return spec;
}

class PortableExecution : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = cuda_absence(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

TEST_F(PortableExecution, SameBitsEveryRun) {
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    DeviceCall call(make_case(busy_spec(96), dtype), "sm80");
    call.queue(nullptr);
    const auto first = call.bytes();
    for (int run = 0; run < 4; ++run) {
      call.poison_outputs();
      call.queue(nullptr);
      EXPECT_EQ(call.bytes(), first) << name_of(dtype) << ", run " << run;
    }
  }
}

TEST_F(PortableExecution, SameBitsOnTwoStreamsAtOnce) {
  DeviceCall narrow(make_case(busy_spec(64), DType::bf16), "sm80");
  DeviceCall wide(make_case(busy_spec(128), DType::f16), "sm80");
  narrow.queue(nullptr);
  wide.queue(nullptr);
  const auto narrow_alone = narrow.bytes(), wide_alone = wide.bytes();
  narrow.poison_outputs();
  wide.poison_outputs();
  queue_on_two_streams(narrow, wide, 5);
  EXPECT_EQ(narrow.bytes(), narrow_alone);
  EXPECT_EQ(wide.bytes(), wide_alone);
}

TEST_F(PortableExecution, RunsInsideAGraph) {
  DeviceCall call(make_case(busy_spec(128), DType::bf16), "sm80");
  call.queue(nullptr);
  const auto eager = call.bytes();
  call.poison_outputs();

  call.replay_as_graph(2);
  EXPECT_EQ(call.bytes(), eager);
}

TEST_F(PortableExecution, AsksForItsWorkspace) {
  const AttentionCase problem = make_case({.name = "workspace"}, DType::bf16);
  Placement placement(&cuda_memory());
  const ConstTensorView q = placement.input(problem.q.view());
  Tensor out(DType::bf16, {1, 2, 33, 32}), mass(DType::f32, {1, 2, 33});
  const TensorView device_out = placement.output(out), device_mass = placement.output(mass);
  const Execution execution{.target = "sm80"};
  const AttentionStats stats{.column_mass = device_mass};  // needs the lse, which the caller does not keep
  EXPECT_EQ(attention_workspace(q, q, q, device_out, {}, {}, execution), 0u);
  const std::size_t bytes = attention_workspace(q, q, q, device_out, {}, stats, execution);
  EXPECT_GE(bytes, 2u * 33u * sizeof(float));
  try {
    attention(q, q, q, device_out, {}, stats, execution);
    FAIL() << "ran without its workspace";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("needs " + std::to_string(bytes) + " bytes of device workspace"));
  }
  // The caller's allocator gives it where it is asked.
  Tensor scratch(DType::f32, {static_cast<std::int64_t>(bytes / sizeof(float) + 1)});
  void* memory = placement.output(scratch).data;
  const auto allocate = [](void* user, std::size_t) { return user; };
  const Execution allocates{.target = "sm80", .cuda = {.allocate = allocate, .allocate_user = memory}};
  EXPECT_NO_THROW(attention(q, q, q, device_out, {}, stats, allocates));
}

TEST(PortableRefusal, TensorsOnTheCpu) {
  const Tensor q(DType::f32, {1, 1, 4, 8});
  Tensor out(DType::f32, {1, 1, 4, 8});
  for (const auto& candidate : explain(q, q, q, out).candidates) {
    if (candidate.name != "sm80") continue;
    EXPECT_EQ(candidate.refusal, "tensors lie on the CPU");
  }
}

TEST_F(PortableExecution, RefusesWideHeads) {
  const AttentionCase problem = make_case({.name = "wide", .head_dim = 264}, DType::f16);
  EXPECT_EQ(forward_refusal(problem, {.name = "sm80", .memory = &cuda_memory()}, Statistics::none),
            "head_dim 264 or value_dim 264 is over 256");
}

}  // namespace
}  // namespace rootdk::test
