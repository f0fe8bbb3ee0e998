#include "layers/tape.h"

#include <ctime>

#include "core/check.h"
#include "layers/stored_matrix.h"

namespace rootdk {

void Node::fail_without_value() const {
  fail("layers: the weights [", rows(), ", ", width(),
       "] are stored elsewhere: they have no f32 value and no gradient");
}

void Node::bind(std::shared_ptr<const StoredMatrix> matrix) {
  require(matrix->matrix.rows == rows() && matrix->matrix.columns == width(), "layers: a stored matrix [",
          matrix->matrix.rows, ", ", matrix->matrix.columns, "] for weights [", rows(), ", ", width(), "]");
  require(!value_.defined(), "layers: the weights ", describe(value_), " have a value already");
  stored_ = std::move(matrix);
}

Tensor& Node::grad() {
  if (!grad_.defined()) grad_ = Tensor(DType::f32, value().shape());
  return grad_;
}

void Node::add_grad(const Tensor& addend) {
  require(addend.elements() == value_.elements(), "layers: gradient ", describe(addend), " for a value ",
          describe(value_));
  float* sum = grad_data();
  const float* more = addend.view().as<float>();
  const std::int64_t count = addend.elements();
  for (std::int64_t i = 0; i < count; ++i) sum[i] += more[i];
}

Value make_value(std::initializer_list<std::int64_t> shape) {
  return make_value(std::span(shape.begin(), shape.size()));
}

Value make_value(std::span<const std::int64_t> shape) { return std::make_shared<Node>(Tensor(DType::f32, shape)); }

Value make_unwritten(std::initializer_list<std::int64_t> shape) {
  return std::make_shared<Node>(Tensor::unwritten(DType::f32, std::span(shape.begin(), shape.size())));
}

Value make_unwritten_like(const Value& other) {
  return std::make_shared<Node>(Tensor::unwritten(DType::f32, other->value().shape()));
}

Value make_weight(std::int64_t rows, std::int64_t width, WeightMemory memory) {
  return memory == WeightMemory::own ? make_value({rows, width}) : std::make_shared<Node>(rows, width);
}

void Tape::backward() {
  while (!records_.empty()) {
    const std::function<void()> record = std::move(records_.back());
    records_.pop_back();
    record();  // then lets go of the activations it held
  }
}

namespace {

// Lends a context another tape.
class OtherTape {
 public:
  OtherTape(Context& context, Tape& tape) : context_(context), before_(context.tape) { context.tape = &tape; }
  ~OtherTape() { context_.tape = before_; }
  OtherTape(const OtherTape&) = delete;
  OtherTape& operator=(const OtherTape&) = delete;

 private:
  Context& context_;
  Tape* before_;
};

}  // namespace

Value recomputed(Context& context, std::function<Value(Context&)> body) {
  if (!context.tape) return body(context);
  const std::uint64_t dropout_calls = context.dropout_calls;
  Value y;
  {
    Tape forgotten;  // layers compute as they do for a gradient: other products have other bits
    const OtherTape lent(context, forgotten);
    y = body(context);
  }
  context.tape->record([&context, body = std::move(body), dropout_calls, y] {
    Tape tape;
    Context again = context;
    again.tape = &tape;
    again.dropout_calls = dropout_calls;
    again.times = nullptr;
    const Value same = body(again);
    same->add_grad(y->grad());
    tape.backward();
  });
  return y;
}

double layer_clock(const LayerTimes& times) {
  timespec now{};
  clock_gettime(times.processor_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

std::uint64_t Context::next_seed() {
  // splitmix64 keeps the seeds of neighbouring calls and steps apart.
  std::uint64_t word = seed + 0x9E3779B97F4A7C15u * ++dropout_calls;
  word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9u;
  word = (word ^ (word >> 27)) * 0x94D049BB133111EBu;
  return word ^ (word >> 31);
}

}  // namespace rootdk
