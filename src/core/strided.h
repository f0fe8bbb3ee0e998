#pragma once

// Typed, strided access to a view: q(b, h, i, d) instead of pointer arithmetic.

#include <array>
#include <cstdint>
#include <utility>

#include "core/check.h"
#include "rootdk/tensor.h"

namespace rootdk {

template <class T, int Rank>
class Strided {
 public:
  Strided() = default;
  Strided(T* data, const std::array<std::int64_t, kMaxRank>& strides) : data_(data) {
    for (std::size_t i = 0; i < Rank; ++i) strides_[i] = strides[i];
  }

  template <class... Index>
  requires(sizeof...(Index) == Rank) T& operator()(Index... index) const {
    return data_[offset(std::make_index_sequence<Rank>{}, static_cast<std::int64_t>(index)...)];
  }
  // The address alone, also where nothing is: an empty view has no element to refer to.
  template <class... Index>
  requires(sizeof...(Index) == Rank) T* at(Index... index) const {
    const std::int64_t elements = offset(std::make_index_sequence<Rank>{}, static_cast<std::int64_t>(index)...);
    return data_ ? data_ + elements : nullptr;
  }

  T* data() const { return data_; }
  std::int64_t stride(std::size_t dimension) const { return strides_[dimension]; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  template <std::size_t... I, class... Index>
  std::int64_t offset(std::index_sequence<I...>, Index... index) const {
    return ((index * strides_[I]) + ... + 0);
  }

  T* data_ = nullptr;
  std::array<std::int64_t, Rank> strides_{};
};

// The view must hold T; a mismatch is a mistake of the library, not of its caller.
template <class T, int Rank>
Strided<const T, Rank> read(const ConstTensorView& view) {
  if (view.dtype != dtype_of<T> || view.rank != Rank) {
    fail("internal: ", describe(view), " read as ", name_of(dtype_of<T>), " of rank ", Rank);
  }
  return {view.as<T>(), view.strides};
}

template <class T, int Rank>
Strided<T, Rank> write(const TensorView& view) {
  if (view.dtype != dtype_of<T> || view.rank != Rank) {
    fail("internal: ", describe(view), " written as ", name_of(dtype_of<T>), " of rank ", Rank);
  }
  return {view.as<T>(), view.strides};
}

// The view seen with the broadcast shape: dimensions of size 1 get stride 0.
template <class View>
View broadcast(View view, std::initializer_list<std::int64_t> shape) {
  std::size_t i = 0;
  for (std::int64_t size : shape) {
    if (view.shape[i] != size) view.strides[i] = 0;
    view.shape[i++] = size;
  }
  return view;
}

// Sets every element of an f32 view to 0; not given: nothing to do.
void fill_zero(const TensorView& view);

// Calls body(T{}) with the C++ type of a floating DType.
template <class Body>
decltype(auto) with_floating_type(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::f32: return body(float{});
    case DType::bf16: return body(BFloat16{});
    case DType::f16: return body(Float16{});
    case DType::f64: return body(double{});
    default: fail("internal: ", name_of(dtype), " is not a floating type");
  }
}

// Widening and rounding between any two element types through float or double.
inline double to_double(float x) { return x; }
inline double to_double(double x) { return x; }
inline double to_double(BFloat16 x) { return static_cast<float>(x); }
inline double to_double(Float16 x) { return static_cast<float>(x); }

// A double is first rounded to odd as a float, so that the second rounding to a 16-bit type is the only one that shows.
float round_to_odd(double x);
template <class T>
T from_double(double x) {
  if constexpr (sizeof(T) == 2) {
    return T(round_to_odd(x));
  } else {
    return static_cast<T>(x);
  }
}

}  // namespace rootdk
