#pragma once

#include <algorithm>
#include <chrono>
#include <limits>

namespace rootdk::lab {

// The best of `repeats` runs, after one that warms up: what the machine can do when nothing disturbs it.
template <class Body>
double best_seconds(int repeats, Body&& body) {
  body();
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < repeats; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

}  // namespace rootdk::lab
