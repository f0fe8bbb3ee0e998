#pragma once

// What both passes of the backward share: the tensors that belong to query rows, and gradients that are summed.

#include "core/strided.h"
#include "distributed/call.h"

namespace rootdk::distributed {

// A gradient summed in f32 (f64 beside f64), in the caller's memory where that has the type.
class Sums {
 public:
  explicit Sums(const TensorView& result) : result_(result) {
    if (!result.defined()) return;
    if (size_of(result.dtype) == 2) memory_ = Tensor(DType::f32, std::span(result.shape).first(4));
    clear();
  }
  bool defined() const { return result_.defined(); }
  TensorView view() { return memory_.defined() ? memory_.view() : result_; }

  template <class T>
  void add(std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t rows, const T* values) {
    const auto to = write<T, 4>(view());
    const std::int64_t width = result_.size(3);
    for (std::int64_t i = 0; i < rows; ++i) {
      T* row = to.at(b, h, first + i, 0);
      for (std::int64_t d = 0; d < width; ++d) row[d] += values[i * width + d];
    }
  }

  void round() {
    if (!memory_.defined()) return;
    const auto from = read<float, 4>(memory_.view());
    with_floating_type(result_.dtype, [&](auto element) {
      using Element = decltype(element);
      const auto to = write<Element, 4>(result_);
      each([&](auto... index) { to(index...) = static_cast<Element>(from(index...)); });
    });
  }

 private:
  template <class Body>
  void each(Body body) {
    for (std::int64_t b = 0; b < result_.size(0); ++b)
      for (std::int64_t h = 0; h < result_.size(1); ++h)
        for (std::int64_t i = 0; i < result_.size(2); ++i)
          for (std::int64_t d = 0; d < result_.size(3); ++d) body(b, h, i, d);
  }
  void clear() {
    with_floating_type(view().dtype, [&](auto element) {
      using Element = decltype(element);
      const auto to = write<Element, 4>(view());
      each([&](auto... index) { to(index...) = Element{}; });
    });
  }

  TensorView result_;
  Tensor memory_;
};

// Everything that belongs to query rows and goes with them, in one order.
class QueryTensors {
 public:
  QueryTensors(const AttentionSaved& saved, const AttentionUpstream& upstream);
  // A mask and a bias that have rows go along, too.
  void add(const Call& call, const RowsGiven& given);

  // q, out, grad out, lse, then those that are given of the others
  const std::vector<ConstTensorView>& all() const { return all_; }

  // The same for some rows of a head of tensors in the order of all().
  void set(const std::vector<ConstTensorView>& tensors, std::int64_t b, std::int64_t h, std::int64_t first,
           std::int64_t rows, AttentionSaved& saved, AttentionUpstream& upstream) const;
  // The mask and the bias among them.
  RowTensors row_tensors(const std::vector<ConstTensorView>& tensors) const;

 private:
  ConstTensorView contiguous(const ConstTensorView& view);

  std::vector<ConstTensorView> all_;
  std::vector<Tensor> copies_;
  bool entropy_ = false, grad_lse_ = false, grad_entropy_ = false;
  std::size_t mask_ = 0, bias_ = 0;  // their numbers; 0: they do not go along
};

}  // namespace rootdk::distributed
