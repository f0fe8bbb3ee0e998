#pragma once

#include "cuda/ptx/arithmetic.cuh"

namespace rootdk::cuda::ptx {

template <class Element>
float2 unpack(std::uint32_t pair) {
  if constexpr (std::is_same_v<Element, __half>) {
    return {half_of(pair, 0), half_of(pair, 1)};
  } else {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
  }
}

}  // namespace rootdk::cuda::ptx
