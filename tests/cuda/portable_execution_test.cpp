// How the portable path runs: the same bits every time and under load, the caller's stream, CUDA graphs, the workspace
// it asks for, and what it refuses.

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "conformance/cases.h"
#include "core/check.h"
#include "cuda/cuda_memory.h"
#include "rootdk/error.h"

namespace rootdk::test {
namespace {

void check(cudaError_t status) { require(status == cudaSuccess, "test: ", cudaGetErrorString(status)); }

// A forward and a backward call whose tensors stay on the device, so that they can be queued again and again.
class DeviceCall {
 public:
  explicit DeviceCall(const AttentionCase& problem) : placement_(&cuda_memory()) {
    const ConstTensorView q = problem.q.view(), k = problem.k.view(), v = problem.v.view();
    saved_ = {.q = placement_.input(q), .k = placement_.input(k), .v = placement_.input(v), .entropy = {}};
    out_ = output(problem.dtype, {q.size(0), q.size(1), q.size(2), v.size(3)});
    stats_.lse = output(DType::f32, {q.size(0), q.size(1), q.size(2)});
    stats_.column_mass = output(DType::f32, {q.size(0), q.size(1), k.size(2)});
    saved_.out = out_;
    saved_.lse = stats_.lse;
    upstream_.out = placement_.input(problem.grad_out.view());
    params_ = placement_.params(problem.params());
    gradients_.q = like(problem.dtype, q);
    gradients_.k = like(problem.dtype, k);
    gradients_.v = like(problem.dtype, v);
    if (problem.bias.defined()) gradients_.bias = like(problem.bias.dtype(), problem.bias);
    if (problem.relative_table.defined()) gradients_.relative_table = like(DType::f32, problem.relative_table);
    if (problem.sinks.defined()) gradients_.sinks = like(DType::f32, problem.sinks);
    const Execution target{.target = "sm80"};
    const std::size_t bytes = std::max(attention_workspace(saved_.q, saved_.k, saved_.v, out_, params_, stats_, target),
                                       attention_backward_workspace(saved_, upstream_, gradients_, params_, target));
    execution_ = target;
    placement_.add_workspace(execution_, bytes);
  }

  void queue(cudaStream_t stream) {
    execution_.stream = stream;
    attention(saved_.q, saved_.k, saved_.v, out_, params_, stats_, execution_);
    attention_backward(saved_, upstream_, gradients_, params_, execution_);
  }

  // The outputs' bytes, one after another.
  std::vector<std::byte> bytes() {
    placement_.fetch();
    std::vector<std::byte> all;
    for (const Tensor& tensor : outputs_) {
      const auto* data = static_cast<const std::byte*>(tensor.view().data);
      all.insert(all.end(), data, data + tensor.bytes());
    }
    return all;
  }

  // Fills the outputs on the device with NaN again.
  void poison_outputs() {
    for (std::size_t i = 0; i < outputs_.size(); ++i) check(cudaMemset(devices_[i], 0xff, outputs_[i].bytes()));
  }

 private:
  TensorView output(DType dtype, const Shape& shape) {
    outputs_.emplace_back(dtype, shape);
    poison(outputs_.back());
    const TensorView placed = placement_.output(outputs_.back().view());
    devices_.push_back(placed.data);
    return placed;
  }
  TensorView like(DType dtype, const ConstTensorView& view) {
    return output(dtype, Shape(view.shape.begin(), view.shape.begin() + view.rank));
  }

  Placement placement_;
  std::vector<Tensor> outputs_;
  std::vector<void*> devices_;
  AttentionSaved saved_;
  AttentionUpstream upstream_;
  AttentionGradients gradients_;
  AttentionParams params_;
  AttentionStats stats_;
  TensorView out_;
  Execution execution_;
};

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
  spec.scalars.relative_zero = 32;
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
    DeviceCall call(make_case(busy_spec(96), dtype));
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
  DeviceCall narrow(make_case(busy_spec(64), DType::bf16)), wide(make_case(busy_spec(128), DType::f16));
  narrow.queue(nullptr);
  wide.queue(nullptr);
  const auto narrow_alone = narrow.bytes(), wide_alone = wide.bytes();
  narrow.poison_outputs();
  wide.poison_outputs();
  cudaStream_t streams[2];
  for (cudaStream_t& stream : streams) check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  check(cudaDeviceSynchronize());
  for (int run = 0; run < 5; ++run) {
    narrow.queue(streams[0]);
    wide.queue(streams[1]);
  }
  EXPECT_EQ(narrow.bytes(), narrow_alone);
  EXPECT_EQ(wide.bytes(), wide_alone);
  for (cudaStream_t stream : streams) check(cudaStreamDestroy(stream));
}

TEST_F(PortableExecution, RunsInsideAGraph) {
  DeviceCall call(make_case(busy_spec(128), DType::bf16));
  call.queue(nullptr);
  const auto eager = call.bytes();
  call.poison_outputs();

  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t runnable = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  check(cudaDeviceSynchronize());
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  call.queue(stream);
  check(cudaStreamEndCapture(stream, &graph));
  check(cudaGraphInstantiate(&runnable, graph, 0));
  check(cudaGraphLaunch(runnable, stream));
  check(cudaGraphLaunch(runnable, stream));
  EXPECT_EQ(call.bytes(), eager);
  check(cudaGraphExecDestroy(runnable));
  check(cudaGraphDestroy(graph));
  check(cudaStreamDestroy(stream));
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
