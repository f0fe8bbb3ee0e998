#include "cuda/device_call.h"

#include <algorithm>

#include "core/check.h"
#include "cuda/cuda_memory.h"

namespace rootdk::test {
namespace {

void check(cudaError_t status) { require(status == cudaSuccess, "test: ", cudaGetErrorString(status)); }

// A stream that does not wait for the default stream.
class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace

DeviceCall::DeviceCall(const AttentionCase& problem, const std::string& target)
    : target_(target), placement_(&cuda_memory()) {
  const ConstTensorView q = problem.q.view(), k = problem.k.view(), v = problem.v.view();
  saved_ = {.q = placement_.input(q), .k = placement_.input(k), .v = placement_.input(v), .entropy = {}};
  outputs_.reserve(16);  // device views point at them
  out_ = output(problem.dtype, {q.size(0), q.size(1), q.size(2), v.size(3)});
  stats_.lse = output(DType::f32, {q.size(0), q.size(1), q.size(2)});
  if (target == "sm80") stats_.column_mass = output(DType::f32, {q.size(0), q.size(1), k.size(2)});
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
  execution_.target = target_;
  const std::size_t bytes =
      std::max(attention_workspace(saved_.q, saved_.k, saved_.v, out_, params_, stats_, execution_),
               attention_backward_workspace(saved_, upstream_, gradients_, params_, execution_));
  placement_.add_workspace(execution_, bytes);
}

void DeviceCall::queue(cudaStream_t stream) {
  execution_.cuda.stream = stream;
  attention(saved_.q, saved_.k, saved_.v, out_, params_, stats_, execution_);
  attention_backward(saved_, upstream_, gradients_, params_, execution_);
}

void DeviceCall::replay_as_graph(int times) {
  const Stream stream;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t runnable = nullptr;
  check(cudaDeviceSynchronize());
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  queue(stream);
  check(cudaStreamEndCapture(stream, &graph));
  check(cudaGraphInstantiate(&runnable, graph, 0));
  for (int i = 0; i < times; ++i) check(cudaGraphLaunch(runnable, stream));
  check(cudaStreamSynchronize(stream));
  check(cudaGraphExecDestroy(runnable));
  check(cudaGraphDestroy(graph));
}

std::vector<std::byte> DeviceCall::bytes() {
  placement_.fetch();
  std::vector<std::byte> all;
  for (const Tensor& tensor : outputs_) {
    const auto* data = static_cast<const std::byte*>(tensor.view().data);
    all.insert(all.end(), data, data + tensor.bytes());
  }
  return all;
}

void DeviceCall::poison_outputs() {
  for (std::size_t i = 0; i < outputs_.size(); ++i) check(cudaMemset(devices_[i], 0xff, outputs_[i].bytes()));
}

TensorView DeviceCall::output(DType dtype, const Shape& shape) {
  outputs_.emplace_back(dtype, shape);
  poison(outputs_.back());
  const TensorView placed = placement_.output(outputs_.back().view());
  devices_.push_back(placed.data);
  return placed;
}

TensorView DeviceCall::like(DType dtype, const ConstTensorView& view) {
  return output(dtype, Shape(view.shape.begin(), view.shape.begin() + view.rank));
}

void queue_on_two_streams(DeviceCall& one, DeviceCall& other, int times) {
  const Stream streams[2];
  check(cudaDeviceSynchronize());
  for (int i = 0; i < times; ++i) {
    one.queue(streams[0]);
    other.queue(streams[1]);
  }
  check(cudaDeviceSynchronize());
}

}  // namespace rootdk::test
