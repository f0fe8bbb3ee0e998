#pragma once

#include <time.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

#include "lab/sampling.h"

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

// The time of each body in each of `rounds` that go through all of them in turn: a slow moment of the machine meets
// every body alike, and ratios between them stay fair. times[body][round]
inline std::vector<std::vector<double>> times_in_rounds(int rounds, const std::vector<std::function<void()>>& bodies) {
  std::vector<std::vector<double>> times(bodies.size());
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t b = 0; b < bodies.size(); ++b) times[b].push_back(best_seconds(1, bodies[b]));
  }
  return times;
}

// The best time of each body.
inline std::vector<double> best_of_rounds(int rounds, const std::vector<std::function<void()>>& bodies) {
  std::vector<double> best;
  for (const auto& times : times_in_rounds(rounds, bodies))
    best.push_back(*std::min_element(times.begin(), times.end()));
  return best;
}

// The time of one body over that of another, round by round: the median and its interval.
inline Interval time_ratio(const std::vector<double>& above, const std::vector<double>& below) {
  std::vector<double> ratios;
  for (std::size_t round = 0; round < above.size(); ++round) ratios.push_back(above[round] / below[round]);
  return median_interval(std::move(ratios));
}

}  // namespace rootdk::lab
