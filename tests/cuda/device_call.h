#pragma once

// A forward and a backward call whose tensors stay on the device, so that they can be queued again and again.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>
#include <vector>

#include "support/attention_case.h"

namespace rootdk::test {

class DeviceCall {
 public:
  DeviceCall(const AttentionCase& problem, const std::string& target);

  void queue(cudaStream_t stream);
  // The same, captured into a graph once and launched `times` times.
  void replay_as_graph(int times);
  // The outputs' bytes, one after another.
  std::vector<std::byte> bytes();
  // Fills the outputs on the device with NaN again.
  void poison_outputs();

 private:
  TensorView output(DType dtype, const Shape& shape);
  TensorView like(DType dtype, const ConstTensorView& view);

  std::string target_;
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

// Queues both calls `times` times on streams of their own.
void queue_on_two_streams(DeviceCall& one, DeviceCall& other, int times);

}  // namespace rootdk::test
