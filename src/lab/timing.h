#pragma once

#include <time.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

namespace rootdk::lab {

// Processor time of all threads of this process. What work costs shows in it whatever else the machine is doing.
inline double processor_seconds() {
#if defined(__EMSCRIPTEN__)
  constexpr clockid_t kClock = CLOCK_MONOTONIC;  // a browser tells no processor time
#else
  constexpr clockid_t kClock = CLOCK_PROCESS_CPUTIME_ID;
#endif
  timespec now{};
  clock_gettime(kClock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The processor time of the best of `repeats` runs, after one that warms up.
template <class Body>
double best_seconds(int repeats, Body&& body) {
  body();
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < repeats; ++i) {
    const double begin = processor_seconds();
    body();
    best = std::min(best, processor_seconds() - begin);
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
