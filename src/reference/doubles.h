#pragma once

// Tensors of any floating type as double: inputs are widened once, results are rounded once, at the end.

#include <span>
#include <utility>

#include "core/strided.h"
#include "rootdk/tensor.h"

namespace rootdk::reference {

// An input, read as x(b, h, i, d). A view that is not given converts to false.
template <int Rank>
class Doubles {
 public:
  Doubles() = default;
  explicit Doubles(ConstTensorView view) {
    if (!view.defined()) return;
    // Repeated dimensions are stored once.
    ConstTensorView stored = view;
    for (std::size_t d = 0; d < Rank; ++d) {
      if (stored.strides[d] == 0 && stored.shape[d] > 1) stored.shape[d] = 1;
    }
    memory_ = convert(stored, DType::f64);
    ConstTensorView repeated = std::as_const(memory_).view();
    for (std::size_t d = 0; d < Rank; ++d) {
      if (repeated.shape[d] != view.shape[d]) repeated.strides[d] = 0;
    }
    at_ = read<double, Rank>(repeated);
  }

  template <class... Index>
  double operator()(Index... index) const {
    return at_(index...);
  }
  explicit operator bool() const { return memory_.defined(); }

 private:
  Tensor memory_;
  Strided<const double, Rank> at_;
};

// An output, collected in double from zero and rounded into its view by round(). Where no view is given it converts to
// false and must not be indexed.
template <int Rank>
class Rounded {
 public:
  Rounded() = default;
  explicit Rounded(const TensorView& view) : target_(view) {
    if (!view.defined()) return;
    memory_ = Tensor(DType::f64, std::span(view.shape.data(), static_cast<std::size_t>(view.rank)));
    at_ = write<double, Rank>(memory_.view());
  }
  // The output seen with a larger shape: what is added along a dimension of size 1 is summed.
  Rounded(const TensorView& view, std::initializer_list<std::int64_t> shape) : Rounded(view) {
    if (view.defined()) at_ = write<double, Rank>(broadcast(memory_.view(), shape));
  }

  template <class... Index>
  double& operator()(Index... index) const {
    return at_(index...);
  }
  explicit operator bool() const { return memory_.defined(); }
  void round() const;

 private:
  TensorView target_;
  Tensor memory_;
  Strided<double, Rank> at_;
};

// Rounds a contiguous double tensor into a view of the same shape.
void round_into(const TensorView& target, const Tensor& source);

template <int Rank>
void Rounded<Rank>::round() const {
  if (target_.defined()) round_into(target_, memory_);
}

}  // namespace rootdk::reference
