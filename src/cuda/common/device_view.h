#pragma once

// Views that are passed to kernels by value, and element access by run-time type.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "rootdk/tensor.h"

namespace rootdk::cuda {

// A strided view of `Rank` dimensions: lse(b, h, i). A null pointer means "not given".
template <class T, int Rank>
struct DeviceView {
  T* data = nullptr;
  std::int64_t strides[Rank] = {};

  template <class... Index>
  __device__ T* at(Index... index) const {
    static_assert(sizeof...(Index) <= Rank);
    T* element = data;
    int dimension = 0;
    ((element += static_cast<std::int64_t>(index) * strides[dimension++]), ...);
    return element;
  }
  template <class... Index>
  __device__ T& operator()(Index... index) const {
    static_assert(sizeof...(Index) == Rank);
    return *at(index...);
  }
  __host__ __device__ explicit operator bool() const { return data != nullptr; }
};

// A view whose element type is known at run time only.
template <int Rank>
struct AnyView {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t strides[Rank] = {};

  template <class... Index>
  __device__ std::int64_t offset(Index... index) const {
    static_assert(sizeof...(Index) <= Rank);
    std::int64_t sum = 0;
    int dimension = 0;
    ((sum += static_cast<std::int64_t>(index) * strides[dimension++]), ...);
    return sum;
  }
  __host__ __device__ explicit operator bool() const { return data != nullptr; }
};

__device__ inline float load_as_float(const void* data, DType dtype, std::int64_t offset) {
  switch (dtype) {
    case DType::bf16: return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[offset]);
    case DType::f16: return __half2float(static_cast<const __half*>(data)[offset]);
    default: return static_cast<const float*>(data)[offset];
  }
}

__device__ inline void store_float(void* data, DType dtype, std::int64_t offset, float value) {
  switch (dtype) {
    case DType::bf16: static_cast<__nv_bfloat16*>(data)[offset] = __float2bfloat16_rn(value); break;
    case DType::f16: static_cast<__half*>(data)[offset] = __float2half_rn(value); break;
    default: static_cast<float*>(data)[offset] = value;
  }
}

// --- host: from the library's views -------------------------------------------------------------------------------

template <class T, int Rank, class Void>
DeviceView<T, Rank> device_view(const BasicTensorView<Void>& view) {
  DeviceView<T, Rank> result;
  if (!view.defined()) return result;
  result.data = static_cast<T*>(view.data);
  for (int i = 0; i < Rank; ++i) result.strides[i] = view.stride(i);
  return result;
}

// Dimensions of size 1 repeat: their stride becomes 0.
template <class T, int Rank, class Void>
DeviceView<T, Rank> broadcast_view(const BasicTensorView<Void>& view) {
  DeviceView<T, Rank> result = device_view<T, Rank>(view);
  for (int i = 0; i < Rank && view.defined(); ++i) {
    if (view.size(i) == 1) result.strides[i] = 0;
  }
  return result;
}

template <int Rank, class Void>
AnyView<Rank> any_view(const BasicTensorView<Void>& view) {
  AnyView<Rank> result;
  if (!view.defined()) return result;
  result.data = const_cast<void*>(static_cast<const void*>(view.data));
  result.dtype = view.dtype;
  for (int i = 0; i < Rank; ++i) result.strides[i] = view.stride(i);
  return result;
}

}  // namespace rootdk::cuda
