#pragma once

// Making, copying and comparing tensors.

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "rootdk/tensor.h"

namespace rootdk::test {

using Shape = std::vector<std::int64_t>;

// Normally distributed values, rounded to the type; the same for the same seed everywhere.
Tensor random_tensor(DType dtype, const Shape& shape, std::uint64_t seed, double deviation = 1.0);
// Each element true with the given probability.
Tensor random_mask(const Shape& shape, std::uint64_t seed, double keep);
Tensor tensor_of(DType dtype, const Shape& shape, std::span<const double> values);
Tensor i32_tensor(const std::vector<std::int32_t>& values);

// A contiguous copy in the same type (any type).
Tensor clone(const ConstTensorView& view);
// The elements of a floating tensor in row-major order.
std::vector<double> doubles(const ConstTensorView& view);
// Fills with NaN, so that an element that nobody writes shows.
void poison(Tensor& tensor);

// How far two tensors of one shape are apart. Where the expected element is not finite, the actual one must be the same
// infinity, or NaN too; otherwise `largest` is infinite.
struct Difference {
  double largest = 0;    // max |actual - expected|
  double magnitude = 0;  // max |expected| over finite elements
  std::size_t where = 0;

  double relative() const { return largest == 0 ? 0 : largest / (magnitude > 0 ? magnitude : 1); }
};
Difference difference(const ConstTensorView& expected, const ConstTensorView& actual);

}  // namespace rootdk::test
