#pragma once

// Seeded samples, and what can be said from them.

#include <cstdint>
#include <span>
#include <vector>

#include "lab/claim.h"
#include "rootdk/dropout.h"
#include "rootdk/tensor.h"

namespace rootdk::lab {

// Standard normal and uniform numbers from Philox: the same on every machine. A stream is one experiment's own.
class Random {
 public:
  Random(std::uint64_t seed, std::uint32_t stream) : seed_(seed), stream_(stream) {}

  double uniform();  // in (0, 1)
  double normal();
  std::int64_t below(std::int64_t bound);  // in [0, bound)
  // Filled by all threads; the numbers that as many calls of normal() give.
  Tensor normal_tensor(std::initializer_list<std::int64_t> shape, double deviation = 1.0);

 private:
  std::uint32_t word();

  std::uint64_t seed_;
  std::uint32_t stream_;
  std::uint64_t counter_ = 0;
  PhiloxWords block_{};
  int used_ = 4;
  double spare_ = 0;
  bool has_spare_ = false;
};

double mean(std::span<const double> values);
double variance(std::span<const double> values);  // unbiased
double quantile(std::vector<double> values, double share);
double median(std::vector<double> values);

// 95 % intervals: of a mean (normal theory), a variance (from the fourth moment), the excess kurtosis (jackknife over
// 100 blocks), a share (Wilson), a median (order statistics), and an exact number.
Interval mean_interval(std::span<const double> values);
Interval variance_interval(std::span<const double> values);
Interval kurtosis_interval(std::span<const double> values);
Interval share_interval(std::int64_t hits, std::int64_t trials);
Interval median_interval(std::vector<double> values);
Interval exact(double value);
// A number that is worked out and not measured: reports show it as expected, and nothing beside it.
Interval not_measured();
// Of a quotient, from the intervals of two positive numbers: wider than either alone.
Interval quotient(const Interval& above, const Interval& below);

// The slope of ln y over ln x by least squares: the exponent of a power law.
Interval power_law_exponent(std::span<const double> x, std::span<const double> y);

}  // namespace rootdk::lab
