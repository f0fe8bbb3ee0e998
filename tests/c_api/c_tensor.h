#pragma once

// What the tests of the C ABI share: tensors with smooth values, and their descriptions in C.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "rootdk/c_api.h"
#include "rootdk/tensor.h"

namespace rootdk {

inline rootdk_tensor c_tensor(const Tensor& tensor) {
  const ConstTensorView view = tensor;
  rootdk_tensor result{};
  result.data = const_cast<void*>(view.data);
  result.dtype = static_cast<int32_t>(view.dtype);
  result.rank = view.rank;
  std::copy(view.shape.begin(), view.shape.end(), result.shape);
  std::copy(view.strides.begin(), view.strides.end(), result.strides);
  return result;
}

inline Tensor wave(std::initializer_list<std::int64_t> shape, float step) {
  Tensor tensor(DType::f32, shape);
  float x = step;
  for (float& value : tensor.values<float>()) value = std::sin(x += step);
  return tensor;
}

inline void expect_same_bits(const Tensor& a, const Tensor& b) {
  ASSERT_EQ(a.bytes(), b.bytes());
  EXPECT_EQ(0, std::memcmp(a.view().data, b.view().data, a.bytes()));
}

}  // namespace rootdk
