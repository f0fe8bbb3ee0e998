#include "support/tensors.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>

#include "core/check.h"
#include "core/strided.h"

namespace rootdk::test {
namespace {

// SplitMix64: unlike the distributions of <random>, the same on every standard library.
class Generator {
 public:
  explicit Generator(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 0x1234567u) {}
  double uniform() { return (static_cast<double>(next() >> 11) + 0.5) * 0x1p-53; }
  double normal() { return std::sqrt(-2 * std::log(uniform())) * std::cos(2 * std::numbers::pi * uniform()); }

 private:
  std::uint64_t next() {
    std::uint64_t x = state_ += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  }
  std::uint64_t state_;
};

// Copies elements of one size into row-major order.
template <class Word>
void copy_words(const ConstTensorView& view, Word* to) {
  const auto* base = static_cast<const Word*>(view.data);
  std::array<std::int64_t, kMaxRank> index{};
  for (std::int64_t n = view.elements(); n > 0; --n) {
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < static_cast<std::size_t>(view.rank); ++d) offset += index[d] * view.strides[d];
    *to++ = base[offset];
    for (auto d = static_cast<std::size_t>(view.rank); d-- > 0;) {
      if (++index[d] < view.shape[d]) break;
      index[d] = 0;
    }
  }
}

}  // namespace

Tensor random_tensor(DType dtype, const Shape& shape, std::uint64_t seed, double deviation) {
  Tensor exact(DType::f64, shape);
  Generator generator(seed);
  for (double& value : exact.values<double>()) value = deviation * generator.normal();
  return convert(exact, dtype);
}

Tensor random_mask(const Shape& shape, std::uint64_t seed, double keep) {
  Tensor mask(DType::boolean, shape);
  Generator generator(seed);
  for (bool& value : mask.values<bool>()) value = generator.uniform() < keep;
  return mask;
}

Tensor tensor_of(DType dtype, const Shape& shape, std::span<const double> values) {
  Tensor exact(DType::f64, shape);
  require(static_cast<std::size_t>(exact.elements()) == values.size(), "tensor_of: ", values.size(), " values for ",
          describe(exact));
  std::copy(values.begin(), values.end(), exact.values<double>().begin());
  return convert(exact, dtype);
}

Tensor i32_tensor(const std::vector<std::int32_t>& values) {
  Tensor tensor(DType::i32, {static_cast<std::int64_t>(values.size())});
  std::copy(values.begin(), values.end(), tensor.values<std::int32_t>().begin());
  return tensor;
}

Tensor clone(const ConstTensorView& view) {
  if (!view.defined()) return {};
  Tensor copy(view.dtype, std::span(view.shape.data(), static_cast<std::size_t>(view.rank)));
  switch (size_of(view.dtype)) {
    case 1: copy_words(view, copy.view().as<std::uint8_t>()); break;
    case 2: copy_words(view, copy.view().as<std::uint16_t>()); break;
    case 4: copy_words(view, copy.view().as<std::uint32_t>()); break;
    default: copy_words(view, copy.view().as<std::uint64_t>()); break;
  }
  return copy;
}

std::vector<double> doubles(const ConstTensorView& view) {
  const Tensor exact = convert(view, DType::f64);
  const auto values = exact.values<double>();
  return {values.begin(), values.end()};
}

void poison(Tensor& tensor) {
  if (tensor.defined()) std::memset(tensor.view().data, 0xff, tensor.bytes());
}

Difference difference(const ConstTensorView& expected, const ConstTensorView& actual) {
  const std::vector<double> e = doubles(expected), a = doubles(actual);
  require(e.size() == a.size(), "difference: ", describe(expected), " and ", describe(actual));
  Difference result;
  for (std::size_t n = 0; n < e.size(); ++n) {
    double distance = std::abs(a[n] - e[n]);
    if (std::isfinite(e[n])) {
      result.magnitude = std::max(result.magnitude, std::abs(e[n]));
    } else {
      const bool same = std::isnan(e[n]) ? std::isnan(a[n]) : a[n] == e[n];
      distance = same ? 0 : std::numeric_limits<double>::infinity();
    }
    if (std::isnan(distance)) distance = std::numeric_limits<double>::infinity();
    if (distance > result.largest) {
      result.largest = distance;
      result.where = n;
    }
  }
  return result;
}

}  // namespace rootdk::test
