#pragma once

#include <array>
#include <cstdint>

namespace rootdk::distributed {

// The exact sum of doubles: a fixed-point number as wide as all of them. It has no order, and two sums add limb by
// limb. Up to 2^30 numbers. Infinities and NaN are counted apart.
class ExactSum {
 public:
  static constexpr int kLimbs = 72;  // of 32 bits, from 2^-1152 on: the smallest double is 2^-1074, with 53 digits

  void add(double value);
  void add(const ExactSum& other);
  double value() const;

 private:
  std::array<std::int64_t, kLimbs> limbs_{};
  std::int64_t plus_infinities_ = 0, minus_infinities_ = 0, nans_ = 0;
};

// The sum of numbers in [0, 2), each rounded down to a multiple of 2^-90. It has no order either, and takes a twentieth
// of the memory. Up to 2^32 numbers. A number outside makes the sum NaN.
class UnitSum {
 public:
  static constexpr int kLimbs = 3, kBits = 30;

  void add(double value);
  void add(const UnitSum& other);
  double value() const;

 private:
  std::array<std::int64_t, kLimbs> limbs_{};  // the highest first
  std::int64_t outside_ = 0;
};

}  // namespace rootdk::distributed
