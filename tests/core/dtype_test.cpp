#include "rootdk/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/strided.h"

namespace rootdk {
namespace {

template <class T>
T from_bits(std::uint32_t bits) {
  T value;
  value.bits = static_cast<std::uint16_t>(bits);
  return value;
}

// The value of a 16-bit pattern by the definition of the format.
double by_definition(std::uint32_t bits, int exponent_bits, int mantissa_bits) {
  const std::uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
  const auto exponent = static_cast<int>((bits >> mantissa_bits) & ((1u << exponent_bits) - 1));
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = bits & 0x8000u ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  }
  const double fraction = std::ldexp(static_cast<double>(mantissa), -mantissa_bits);
  return exponent == 0 ? sign * std::ldexp(fraction, 1 - bias) : sign * std::ldexp(1 + fraction, exponent - bias);
}

template <class T>
struct Format;
template <>
struct Format<BFloat16> {
  static constexpr int exponent = 8, mantissa = 7;
};
template <>
struct Format<Float16> {
  static constexpr int exponent = 5, mantissa = 10;
};

template <class T>
class HalfTypes : public testing::Test {};
using Types = testing::Types<BFloat16, Float16>;
TYPED_TEST_SUITE(HalfTypes, Types);

TYPED_TEST(HalfTypes, AllPatternsWidenByDefinitionAndComeBack) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto wide = static_cast<float>(from_bits<TypeParam>(bits));
    const double expected = by_definition(bits, Format<TypeParam>::exponent, Format<TypeParam>::mantissa);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(wide)) << bits;
      EXPECT_TRUE(std::isnan(static_cast<float>(TypeParam(wide)))) << bits;
    } else {
      EXPECT_EQ(wide, expected) << bits;
      EXPECT_EQ(TypeParam(wide).bits, bits);
    }
  }
}

// Between two neighbours: the middle goes to the even one, anything off the middle to the nearer one. The distances are
// below what a float can hold, so rounding twice on the way would show.
TYPED_TEST(HalfTypes, RoundsOnceToNearestEven) {
  const auto infinity = static_cast<std::uint32_t>(TypeParam(std::numeric_limits<float>::infinity()).bits);
  for (std::uint32_t bits = 0; bits + 1 < infinity; ++bits) {
    const double low = static_cast<float>(from_bits<TypeParam>(bits));
    const double high = static_cast<float>(from_bits<TypeParam>(bits + 1));
    const double middle = (low + high) / 2, step = (high - low) * 0x1p-40;
    const std::uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    EXPECT_EQ(from_double<TypeParam>(middle).bits, even) << bits;
    EXPECT_EQ(from_double<TypeParam>(middle - step).bits, bits);
    EXPECT_EQ(from_double<TypeParam>(middle + step).bits, bits + 1);
    EXPECT_EQ(from_double<TypeParam>(-middle - step).bits, (bits + 1) | 0x8000u);
  }
}

TYPED_TEST(HalfTypes, OverflowsToInfinity) {
  EXPECT_TRUE(std::isinf(static_cast<float>(from_double<TypeParam>(1e300))));
  EXPECT_TRUE(std::isinf(static_cast<float>(TypeParam(std::numeric_limits<float>::max()))));
}

// By definition: 2^(exponent - 7) (1 + mantissa / 8), 2^-6 mantissa / 8 where the exponent is 0.
double e4m3_by_definition(int magnitude) {
  const int exponent = magnitude / 8, mantissa = magnitude % 8;
  return exponent ? std::ldexp(1 + mantissa / 8.0, exponent - 7) : std::ldexp(mantissa / 8.0, -6);
}

TEST(Float8E4M3, AllPatternsWidenByDefinitionAndComeBack) {
  for (int bits = 0; bits < 256; ++bits) {
    Float8E4M3 x;
    x.bits = static_cast<std::uint8_t>(bits);
    const auto value = static_cast<float>(x);
    if (bits % 128 == 127) {
      EXPECT_TRUE(std::isnan(value));
    } else {
      EXPECT_EQ(value, (bits < 128 ? 1 : -1) * e4m3_by_definition(bits % 128)) << bits;
    }
    EXPECT_EQ(Float8E4M3(value).bits, bits);
  }
}

TEST(Float8E4M3, RoundsToNearestEvenAndStaysFinite) {
  for (int bits = 0; bits < 126; ++bits) {
    const double middle = (e4m3_by_definition(bits) + e4m3_by_definition(bits + 1)) / 2, step = 1e-9 * middle;
    EXPECT_EQ(Float8E4M3(middle).bits, bits + bits % 2) << bits;
    EXPECT_EQ(Float8E4M3(middle - step).bits, bits) << bits;
    EXPECT_EQ(Float8E4M3(-middle - step).bits, (bits + 1) | 0x80) << bits;
  }
  for (const double large : {448.0, 470.0, 1e300, std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(static_cast<float>(Float8E4M3(large)), 448.0f);
    EXPECT_EQ(static_cast<float>(Float8E4M3(-large)), -448.0f);
  }
  EXPECT_TRUE(std::isnan(static_cast<float>(Float8E4M3(std::numeric_limits<double>::quiet_NaN()))));
}

TEST(DType, SizesAndNames) {
  EXPECT_EQ(size_of(DType::bf16), 2u);
  EXPECT_EQ(size_of(DType::f64), 8u);
  EXPECT_EQ(name_of(DType::boolean), "bool");
  EXPECT_TRUE(is_floating(DType::f16));
  EXPECT_FALSE(is_floating(DType::i32));
}

}  // namespace
}  // namespace rootdk
