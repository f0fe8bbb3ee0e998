#include "distributed/exact_sum.h"

#include <cmath>
#include <limits>

namespace rootdk::distributed {
namespace {

constexpr int kLowest = -1152;  // exponent of the lowest bit
constexpr std::int64_t kBase = std::int64_t{1} << 32;

}  // namespace

void ExactSum::add(double value) {
  if (std::isnan(value)) {
    ++nans_;
  } else if (std::isinf(value)) {
    ++(value > 0 ? plus_infinities_ : minus_infinities_);
  } else if (value != 0) {
    int exponent = 0;
    const double fraction = std::frexp(value, &exponent);               // in [0.5, 1)
    auto digits = static_cast<std::int64_t>(std::ldexp(fraction, 53));  // value = digits 2^(exponent - 53)
    const int at = exponent - 53 - kLowest, shift = at % 32;
    auto limb = static_cast<std::size_t>(at / 32);
    const std::int64_t sign = digits < 0 ? -1 : 1;
    const auto magnitude = static_cast<unsigned __int128>(digits < 0 ? -digits : digits) << shift;
    for (int part = 0; part < 3; ++part) {
      limbs_[limb++] +=
          sign * static_cast<std::int64_t>(static_cast<std::uint64_t>(magnitude >> (32 * part)) & 0xffffffffu);
    }
  }
}

void ExactSum::add(const ExactSum& other) {
  for (std::size_t i = 0; i < limbs_.size(); ++i) limbs_[i] += other.limbs_[i];
  plus_infinities_ += other.plus_infinities_;
  minus_infinities_ += other.minus_infinities_;
  nans_ += other.nans_;
}

double ExactSum::value() const {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (nans_ || (plus_infinities_ && minus_infinities_)) return std::numeric_limits<double>::quiet_NaN();
  if (plus_infinities_) return kInfinity;
  if (minus_infinities_) return -kInfinity;
  // Digits in 0 to 2^32 - 1 with a sign in front, so that equal sums have equal digits; then from the highest down.
  std::array<std::int64_t, kLimbs> digits = limbs_;
  auto carry = [&] {
    std::int64_t over = 0;
    for (std::int64_t& digit : digits) {
      digit += over;
      over = digit >> 32;
      digit -= over * kBase;
    }
    return over;
  };
  const bool negative = carry() < 0;
  if (negative) {
    for (std::int64_t& digit : digits) digit = -digit;
    carry();
  }
  double sum = 0;
  for (int i = kLimbs - 1; i >= 0; --i) {
    sum += std::ldexp(static_cast<double>(digits[static_cast<std::size_t>(i)]), kLowest + 32 * i);
  }
  return negative ? -sum : sum;
}

void UnitSum::add(double value) {
  if (!(value >= 0 && value < 2)) {
    ++outside_;
    return;
  }
  for (std::int64_t& limb : limbs_) {
    value = std::ldexp(value, kBits);
    const double digit = std::floor(value);
    limb += static_cast<std::int64_t>(digit);
    value -= digit;
  }
}

void UnitSum::add(const UnitSum& other) {
  for (std::size_t i = 0; i < limbs_.size(); ++i) limbs_[i] += other.limbs_[i];
  outside_ += other.outside_;
}

double UnitSum::value() const {
  if (outside_) return std::numeric_limits<double>::quiet_NaN();
  std::array<std::int64_t, kLimbs> digits = limbs_;
  for (int i = kLimbs - 1; i > 0; --i) {
    const auto limb = static_cast<std::size_t>(i);
    digits[limb - 1] += digits[limb] >> kBits;
    digits[limb] &= (std::int64_t{1} << kBits) - 1;
  }
  double sum = 0;
  for (int i = 0; i < kLimbs; ++i) {
    sum += std::ldexp(static_cast<double>(digits[static_cast<std::size_t>(i)]), -kBits * (i + 1));
  }
  return sum;
}

}  // namespace rootdk::distributed
