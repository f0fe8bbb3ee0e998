#include "lab/sampling.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/check.h"

namespace rootdk::lab {
namespace {

constexpr double kNormal95 = 1.959963984540054;  // 97.5 % point of the normal distribution

}  // namespace

std::uint32_t Random::word() {
  if (used_ == 4) {
    block_ = philox4x32_10(
        {static_cast<std::uint32_t>(counter_), static_cast<std::uint32_t>(counter_ >> 32), stream_, 0}, seed_);
    ++counter_;
    used_ = 0;
  }
  return block_[static_cast<std::size_t>(used_++)];
}

double Random::uniform() {
  const std::uint64_t bits = (static_cast<std::uint64_t>(word()) << 21) ^ (word() >> 11);
  return (static_cast<double>(bits & ((std::uint64_t{1} << 53) - 1)) + 0.5) * 0x1p-53;
}

double Random::normal() {
  if (has_spare_) {
    has_spare_ = false;
    return spare_;
  }
  // Box and Muller: two uniforms give two independent normals.
  const double radius = std::sqrt(-2.0 * std::log(uniform()));
  const double angle = 2.0 * std::numbers::pi * uniform();
  spare_ = radius * std::sin(angle);
  has_spare_ = true;
  return radius * std::cos(angle);
}

std::int64_t Random::below(std::int64_t bound) {
  return std::min(bound - 1, static_cast<std::int64_t>(uniform() * static_cast<double>(bound)));
}

Tensor Random::normal_tensor(std::initializer_list<std::int64_t> shape, double deviation) {
  Tensor tensor(DType::f32, shape);
  const std::span<float> values = tensor.values<float>();
  std::size_t done = 0;
  // A pair of normals takes the four words of one block, so that every pair can be drawn by itself.
  if (used_ == 4 && !has_spare_) {
    constexpr std::size_t kPairsPerTask = 8192;
    const std::size_t pairs = values.size() / 2, tasks = (pairs + kPairsPerTask - 1) / kPairsPerTask;
    default_executor().parallel_for(static_cast<std::int64_t>(tasks), [&](std::int64_t task) {
      const std::size_t begin = static_cast<std::size_t>(task) * kPairsPerTask;
      Random part(seed_, stream_);
      part.counter_ = counter_ + begin;
      for (std::size_t i = 2 * begin; i < 2 * std::min(pairs, begin + kPairsPerTask); ++i)
        values[i] = static_cast<float>(deviation * part.normal());
    });
    counter_ += pairs;
    done = 2 * pairs;
  }
  for (float& value : values.subspan(done)) value = static_cast<float>(deviation * normal());
  return tensor;
}

double mean(std::span<const double> values) {
  double sum = 0;
  for (double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double variance(std::span<const double> values) {
  const double centre = mean(values);
  double sum = 0;
  for (double value : values) sum += (value - centre) * (value - centre);
  return sum / static_cast<double>(values.size() - 1);
}

double quantile(std::vector<double> values, double share) {
  require(!values.empty(), "lab: a quantile of no values");
  const auto at = static_cast<std::size_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return values[at];
}

double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

Interval mean_interval(std::span<const double> values) {
  const double centre = mean(values);
  const double half = kNormal95 * std::sqrt(variance(values) / static_cast<double>(values.size()));
  return {centre, centre - half, centre + half};
}

Interval variance_interval(std::span<const double> values) {
  const auto n = static_cast<double>(values.size());
  const double centre = mean(values), spread = variance(values);
  double fourth = 0;
  for (double value : values) fourth += std::pow(value - centre, 4);
  fourth /= n;
  // Var(s^2) = (mu4 - sigma^4 (n - 3) / (n - 1)) / n
  const double half = kNormal95 * std::sqrt((fourth - spread * spread * (n - 3) / (n - 1)) / n);
  return {spread, spread - half, spread + half};
}

Interval kurtosis_interval(std::span<const double> values) {
  constexpr std::size_t kBlocks = 100;
  require(values.size() >= 2 * kBlocks, "lab: the kurtosis of ", values.size(), " values, expected ", 2 * kBlocks);
  // Sums of powers about one common centre; without a block they are differences.
  struct Powers {
    double n = 0, first = 0, second = 0, third = 0, fourth = 0;

    void add(const Powers& other, double sign) {
      n += sign * other.n, first += sign * other.first, second += sign * other.second;
      third += sign * other.third, fourth += sign * other.fourth;
    }
    double excess_kurtosis() const {
      const double m = first / n, m2 = second / n, m3 = third / n, m4 = fourth / n;
      const double spread = m2 - m * m;
      return (m4 - 4 * m * m3 + 6 * m * m * m2 - 3 * m * m * m * m) / (spread * spread) - 3;
    }
  };
  const double centre = mean(values);
  std::vector<Powers> blocks(kBlocks);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double x = values[i] - centre;
    blocks[i * kBlocks / values.size()].add({1, x, x * x, x * x * x, x * x * x * x}, 1);
  }
  Powers all;
  for (const Powers& block : blocks) all.add(block, 1);
  std::vector<double> without;
  for (const Powers& block : blocks) {
    Powers rest = all;
    rest.add(block, -1);
    without.push_back(rest.excess_kurtosis());
  }
  constexpr double kFactor = (kBlocks - 1.0) * (kBlocks - 1.0) / kBlocks;  // of the variance of the jackknife
  const double value = all.excess_kurtosis(), half = kNormal95 * std::sqrt(kFactor * variance(without));
  return {value, value - half, value + half};
}

Interval share_interval(std::int64_t hits, std::int64_t trials) {
  const auto n = static_cast<double>(trials);
  const double p = static_cast<double>(hits) / n, z2 = kNormal95 * kNormal95;
  const double centre = (p + z2 / (2 * n)) / (1 + z2 / n);
  const double half = kNormal95 * std::sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n);
  return {p, std::max(0.0, centre - half), std::min(1.0, centre + half)};
}

Interval median_interval(std::vector<double> values) {
  require(!values.empty(), "lab: a median of no values");
  std::sort(values.begin(), values.end());
  const auto n = static_cast<double>(values.size());
  const double half = kNormal95 * std::sqrt(n) / 2;
  const auto at = [&](double position) { return values[static_cast<std::size_t>(std::clamp(position, 0.0, n - 1))]; };
  return {at((n - 1) / 2), at(n / 2 - half), at(n / 2 + half)};
}

Interval exact(double value) { return {value, value, value}; }

Interval not_measured() {
  const double none = std::nan("");
  return {none, none, none};
}

Interval quotient(const Interval& above, const Interval& below) {
  return {above.value / below.value, above.low / below.high, above.high / below.low};
}

Interval power_law_exponent(std::span<const double> x, std::span<const double> y) {
  require(x.size() == y.size() && x.size() >= 3, "lab: an exponent needs three points, got ", x.size());
  const auto n = static_cast<double>(x.size());
  double mx = 0, my = 0;
  for (std::size_t i = 0; i < x.size(); ++i) mx += std::log(x[i]) / n, my += std::log(y[i]) / n;
  double sxx = 0, sxy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    sxx += (std::log(x[i]) - mx) * (std::log(x[i]) - mx);
    sxy += (std::log(x[i]) - mx) * (std::log(y[i]) - my);
  }
  const double slope = sxy / sxx;
  double residual = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double error = std::log(y[i]) - my - slope * (std::log(x[i]) - mx);
    residual += error * error;
  }
  const double half = 2.0 * std::sqrt(residual / std::max(1.0, n - 2) / sxx);
  return {slope, slope - half, slope + half};
}

}  // namespace rootdk::lab
