#pragma once

#include <cmath>
#include <cstdint>

namespace rootdk::lab {

// E max of n independent standard normals: the integral of x n phi(x) Phi(x)^(n - 1), by the trapezoidal rule.
inline double expected_normal_maximum(std::int64_t n) {
  constexpr double kStep = 1e-3, kLimit = 9;
  double sum = 0;
  for (double x = -kLimit; x <= kLimit; x += kStep) {
    const double density = std::exp(-x * x / 2) / std::sqrt(2 * std::acos(-1.0));
    const double below = 0.5 * std::erfc(-x / std::sqrt(2.0));
    sum += x * static_cast<double>(n) * density * std::pow(below, static_cast<double>(n - 1)) * kStep;
  }
  return sum;
}

}  // namespace rootdk::lab
