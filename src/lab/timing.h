#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <vector>

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

// The best time of each body over `rounds` that go through all of them in turn: a slow moment of the machine meets
// every body alike, and ratios between them stay fair.
inline std::vector<double> best_of_rounds(int rounds, const std::vector<std::function<void()>>& bodies) {
  std::vector<double> best(bodies.size(), std::numeric_limits<double>::infinity());
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t b = 0; b < bodies.size(); ++b) best[b] = std::min(best[b], best_seconds(1, bodies[b]));
  }
  return best;
}

}  // namespace rootdk::lab
