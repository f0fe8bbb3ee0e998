#pragma once

// One attention problem that owns its tensors, and running it on a target: what the conformance grid, the fixtures and
// the gradient tests share.

#include <cstdint>
#include <map>
#include <string>

#include "core/attention_call.h"
#include "rootdk/attention.h"
#include "support/device_memory.h"
#include "support/tensors.h"

namespace rootdk::test {

// A [batch, heads, len, dim] tensor stored as such, or with len before heads (BSHD storage).
class DataTensor {
 public:
  DataTensor() = default;
  DataTensor(const ConstTensorView& values, bool length_first);
  TensorView view() { return length_first_ ? memory_.view().transposed(1, 2) : memory_.view(); }
  ConstTensorView view() const { return const_cast<DataTensor*>(this)->view(); }
  Tensor& memory() { return memory_; }
  bool defined() const { return memory_.defined(); }

 private:
  Tensor memory_;
  bool length_first_ = false;
};

struct AttentionCase {
  std::string name;
  DType dtype = DType::f32;
  bool length_first = false;  // storage of q, k, v, out and their gradients
  DataTensor q, k, v, grad_out;
  Tensor grad_lse, grad_entropy;  // given: the loss has a gradient for them
  Tensor kv_lengths, mask, block_mask, q_starts, kv_starts;
  Tensor bias, relative_table, alibi_slopes, sinks, additive_v;
  Tensor weight_rows;                                // given: weights of these rows; else of all
  std::int64_t pooled_rows = 0, pooled_columns = 0;  // 0: no pooled map
  AttentionParams scalars;                           // the fields that are not tensors

  AttentionParams params() const;  // the scalars with the tensors
  DType small() const { return dtype == DType::f64 ? DType::f64 : DType::f32; }
  // The same values in another type; in f64 nothing is lost.
  AttentionCase converted(DType to) const;
};

// Named tensors in row-major f64, with the names of attention.h: "out", "lse", ...; gradients as "grad_q", ...
using Results = std::map<std::string, Tensor>;

struct Target {
  std::string name;                // an implementation, or empty: whichever accepts
  DeviceMemory* memory = nullptr;  // of the device it computes on; null: the CPU
  Executor* executor = nullptr;
  void (*backward)(const BackwardCall& call) = nullptr;  // kernels that no implementation has, in place of `name`
};

// Which statistics a forward run asks for. Implementations may support one set and refuse the other.
enum class Statistics { none, rows, all };

// Why the target cannot run the case here; empty: it can.
std::string forward_refusal(const AttentionCase& problem, const Target& target, Statistics statistics);
std::string backward_refusal(const AttentionCase& problem, const Results& forward, const Target& target);

// Outputs are filled with NaN before the call. `forward` gives what the backward reads: out, lse, entropy.
Results run_forward(const AttentionCase& problem, const Target& target, Statistics statistics = Statistics::all);
Results run_backward(const AttentionCase& problem, const Results& forward, const Target& target);

}  // namespace rootdk::test
