#pragma once

// What every layer computes with: values that know their gradient, the tape that remembers how to go back, and the
// context that says where and how the layers run.
//
// A layer is a function from values to a value. Its forward pass computes at once; where the context has a tape, it
// also records its backward pass there. Tape::backward() then runs the records from last to first, each adding into the
// gradients of what it read. Forward and backward of a layer so stand side by side, and what is built from layers (a
// block, a whole model) needs no backward pass of its own.
//
// Every sum has an order that depends on the shapes alone: results are the same for any number of threads.

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rootdk/executor.h"
#include "rootdk/tensor.h"

namespace rootdk {

struct StoredMatrix;  // layers/stored_matrix.h

// An f32 tensor and the gradient of the loss with respect to it. Activations are matrices [rows, width].
//
// A matrix of weights may lie elsewhere instead, in the type it is stored in: then it has neither an f32 value nor a
// gradient, and what multiplies with it asks for stored().
class Node {
 public:
  explicit Node(Tensor value) : value_(std::move(value)) {}
  Node(std::int64_t rows, std::int64_t width) : declared_{rows, width} {}  // to be stored elsewhere: bind() says where

  Tensor& value() { return has_value(), value_; }
  const Tensor& value() const { return has_value(), value_; }
  std::span<const std::int64_t> shape() const { return value_.defined() ? value_.shape() : std::span(declared_); }
  std::int64_t rows() const { return shape()[0]; }
  std::int64_t width() const { return elements() / (rows() ? rows() : 1); }
  std::int64_t elements() const { return value_.defined() ? value_.elements() : declared_[0] * declared_[1]; }
  const float* data() const { return has_value(), value_.view().as<float>(); }
  float* data() { return has_value(), value_.view().as<float>(); }

  bool has_own_value() const { return value_.defined(); }
  const StoredMatrix* stored() const { return stored_.get(); }  // null: value() has the numbers
  void bind(std::shared_ptr<const StoredMatrix> matrix);

  // Zero until something has been added.
  Tensor& grad();
  bool has_grad() const { return grad_.defined(); }
  void drop_grad() { grad_ = Tensor(); }
  float* grad_data() { return grad().view().as<float>(); }
  // grad += addend, a contiguous f32 tensor of the same number of elements.
  void add_grad(const Tensor& addend);

 private:
  void has_value() const {
    if (!value_.defined()) fail_without_value();
  }
  [[noreturn]] void fail_without_value() const;

  Tensor value_;
  Tensor grad_;
  std::array<std::int64_t, 2> declared_{};
  std::shared_ptr<const StoredMatrix> stored_;
};

using Value = std::shared_ptr<Node>;

// A fresh zeroed value.
Value make_value(std::initializer_list<std::int64_t> shape);
Value make_value(std::span<const std::int64_t> shape);
// A matrix of weights: zeroed, or to be bound to one that is stored elsewhere.
enum class WeightMemory : std::int32_t { own = 0, stored = 1 };
Value make_weight(std::int64_t rows, std::int64_t width, WeightMemory memory);
inline Value make_value_like(const Value& other) { return make_value(other->value().shape()); }
// The same with elements that hold anything: for a result that is written whole. Zeroing is work of one thread.
Value make_unwritten(std::initializer_list<std::int64_t> shape);
Value make_unwritten_like(const Value& other);

class Tape {
 public:
  void record(std::function<void()> backward) { records_.push_back(std::move(backward)); }
  // Runs the records from last to first and forgets them. The gradient of the loss is set before.
  void backward();
  void clear() { records_.clear(); }
  bool empty() const { return records_.empty(); }
  std::size_t size() const { return records_.size(); }

 private:
  std::vector<std::function<void()>> records_;
};

// Where the time of a forward pass goes; see `rootdk bench model`.
struct LayerTimes {
  bool processor_time = false;  // of this thread, where it does all the work; else the time of the clock
  double product_seconds = 0, attention_seconds = 0;
  double product_flops = 0, attention_flops = 0;
  double weight_bytes = 0;  // that products without a tape have read: of a mixture, those of the experts it used
};

// Seconds on the clock that `times` asks for.
double layer_clock(const LayerTimes& times);

// How layers run. The dropout of each place has its own seed: `seed` mixed with the count of dropouts so far.
struct Context {
  Tape* tape = nullptr;          // null: forward only
  Executor* executor = nullptr;  // null: default_executor()
  double dropout = 0.0;          // of activations and attention weights; 0 outside training
  std::uint64_t seed = 0;        // of this step's dropout
  std::uint64_t dropout_calls = 0;
  bool recompute = false;      // blocks keep their input alone, and compute their activations again on the way back
  bool fp8_attention = false;  // attention computes in e4m3, forward; gradients go straight through the rounding
  // Where training asks for flat or sharp attention: the gradient of the loss with respect to the mean entropy of the
  // softmax of each attention layer.
  double entropy_gradient = 0.0;
  LayerTimes* times = nullptr;  // filled where given

  Executor& threads() const { return executor ? *executor : default_executor(); }
  std::uint64_t next_seed();
};

// body(context), whose activations are forgotten where the context has a tape: the backward pass runs the body again,
// with the same dropout, and goes back through it. Outputs and gradients have the same bits. `body` is copied, and must
// not keep references to what ends before the backward pass.
Value recomputed(Context& context, std::function<Value(Context&)> body);

// A tensor that training moves, under the name it has in a checkpoint.
struct Parameter {
  std::string name;
  Value value;
};
using Parameters = std::vector<Parameter>;

}  // namespace rootdk
