#pragma once

#include <cmath>

namespace rootdk::cuda::ptx {

inline float log2_approximate(float x) { return std::log2(x); }

}  // namespace rootdk::cuda::ptx
