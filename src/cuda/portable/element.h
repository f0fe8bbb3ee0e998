#pragma once

// From the run-time element type to the C++ type that a kernel computes on.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "cuda/common/logit_rule.h"

namespace rootdk::cuda::portable {

template <class T>
struct TypeTag {
  using Type = T;
};

template <class Body>
void with_element_type(DType dtype, Body body) {
  switch (dtype) {
    case DType::bf16: return body(TypeTag<__nv_bfloat16>{});
    case DType::f16: return body(TypeTag<__half>{});
    default: return body(TypeTag<float>{});
  }
}

// body(type, additive): 16-bit types compute on tensor cores; f32, and the additive score of every type, in float.
template <class Body>
void with_compute_type(DType dtype, const LogitRule& rule, Body body) {
  if (rule.additive_v) return body(TypeTag<float>{}, std::true_type{});
  with_element_type(dtype, [&](auto type) { body(type, std::false_type{}); });
}

}  // namespace rootdk::cuda::portable
