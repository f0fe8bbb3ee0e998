#pragma once

#include "cuda/ptx/arithmetic.cuh"

namespace rootdk::cuda::ptx {

template <class Element, class Choose>
std::uint32_t choose_pair(std::uint32_t a, std::uint32_t b, Choose choose) {
  const auto one = [&](int i) {
    const float x = half_of<Element>(a, i), y = half_of<Element>(b, i);
    return std::isnan(x) || std::isnan(y) ? NAN : choose(x, y);
  };
  return pack<Element>(one(0), one(1));
}
template <class Element>
std::uint32_t max_pair(std::uint32_t a, std::uint32_t b) {
  return choose_pair<Element>(a, b, [](float x, float y) { return std::max(x, y); });
}
template <class Element>
std::uint32_t min_pair(std::uint32_t a, std::uint32_t b) {
  return choose_pair<Element>(a, b, [](float x, float y) { return std::min(x, y); });
}

}  // namespace rootdk::cuda::ptx
