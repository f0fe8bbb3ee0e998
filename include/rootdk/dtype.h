#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace rootdk {

// Element types. Attention computes on f32, bf16 and f16 (and f64, on the reference alone); the integer types carry
// lengths, positions and masks; i8 and f8e4m3 are what quantised caches hold.
enum class DType : std::int32_t {
  f32 = 0,
  bf16 = 1,
  f16 = 2,
  f64 = 3,
  i32 = 4,
  i64 = 5,
  boolean = 6,
  i8 = 7,
  f8e4m3 = 8
};

constexpr std::size_t size_of(DType type) {
  switch (type) {
    case DType::f64:
    case DType::i64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::bf16:
    case DType::f16: return 2;
    case DType::boolean:
    case DType::i8:
    case DType::f8e4m3: return 1;
  }
  return 0;
}

constexpr std::string_view name_of(DType type) {
  switch (type) {
    case DType::f32: return "f32";
    case DType::bf16: return "bf16";
    case DType::f16: return "f16";
    case DType::f64: return "f64";
    case DType::i32: return "i32";
    case DType::i64: return "i64";
    case DType::boolean: return "bool";
    case DType::i8: return "i8";
    case DType::f8e4m3: return "f8e4m3";
  }
  return "unknown";
}

constexpr bool is_floating(DType type) {
  return type == DType::f32 || type == DType::bf16 || type == DType::f16 || type == DType::f64;
}

// What a cache holds with a scale for each row.
constexpr bool is_quantised(DType type) { return type == DType::i8 || type == DType::f8e4m3; }

// bfloat16: the upper half of a float32. Conversion rounds to nearest, ties to even; NaN stays NaN.
struct BFloat16 {
  std::uint16_t bits = 0;

  BFloat16() = default;
  constexpr explicit BFloat16(float value) : bits(round(value)) {}
  constexpr explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

 private:
  static constexpr std::uint16_t round(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    if ((word & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((word >> 16) | 0x40u);  // quiet NaN
    return static_cast<std::uint16_t>((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
  }
};

// IEEE binary16, subnormals included. Conversion rounds to nearest, ties to even; NaN stays NaN.
struct Float16 {
  std::uint16_t bits = 0;

  Float16() = default;
  constexpr explicit Float16(float value) : bits(round(value)) {}
  constexpr explicit operator float() const { return widen(bits); }

 private:
  static constexpr std::uint16_t round(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    const auto sign = static_cast<std::uint16_t>((word >> 16) & 0x8000u);
    const std::uint32_t magnitude = word & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // rounds to infinity
    if (magnitude < 0x38800000u) {
      // Subnormal result: adding 0.5 aligns the mantissa so that the float addition does the rounding.
      const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
      return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
    }
    const std::uint32_t odd = (magnitude >> 13) & 1u;
    return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
  }
  static constexpr float widen(std::uint16_t half) {
    const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
    const std::uint32_t exponent = (half >> 10) & 0x1fu;
    const std::uint32_t mantissa = half & 0x3ffu;
    if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
    if (exponent == 0) {
      const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
      return sign ? -magnitude : magnitude;
    }
    return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  }
};

// e4m3: a sign, four bits of exponent, three of mantissa; subnormals, NaN, no infinity. Conversion rounds to nearest,
// ties to even; what is too large becomes the largest number, 448; NaN stays NaN.
struct Float8E4M3 {
  static constexpr double kLargest = 448;
  std::uint8_t bits = 0;

  Float8E4M3() = default;
  constexpr explicit Float8E4M3(double value) : bits(round(value)) {}
  constexpr explicit operator float() const {
    const std::uint32_t magnitude = bits & 0x7fu, sign = static_cast<std::uint32_t>(bits & 0x80u) << 24;
    if (magnitude == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
    // The bits are where a float has them; the exponent is then 120 too small, also for subnormals.
    return std::bit_cast<float>(sign | magnitude << 20) * 0x1p120f;
  }

 private:
  static constexpr std::uint8_t round(double value) {
    const auto word = std::bit_cast<std::uint64_t>(value);
    const auto sign = static_cast<std::uint8_t>(word >> 56 & 0x80u);
    const std::uint64_t magnitude = word & ~(std::uint64_t{1} << 63);
    if (magnitude > std::uint64_t{0x7ff} << 52) return sign | 0x7fu;
    if (magnitude >= std::bit_cast<std::uint64_t>(kLargest)) return sign | 0x7eu;
    if (magnitude < std::bit_cast<std::uint64_t>(0x1p-6)) {
      // Subnormal result: adding 2^43, whose last bit is 2^-9, makes the addition do the rounding.
      const double shifted = std::bit_cast<double>(magnitude) + 0x1p43;
      return static_cast<std::uint8_t>(sign | (std::bit_cast<std::uint64_t>(shifted) & 0xfu));
    }
    constexpr int kDropped = 49;  // bits of the mantissa
    const std::uint64_t half = (std::uint64_t{1} << (kDropped - 1)) - 1 + (magnitude >> kDropped & 1u);
    return static_cast<std::uint8_t>(sign | (magnitude - (std::uint64_t{1016} << 52) + half) >> kDropped);
  }
};

// Maps a C++ element type to its DType.
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<Float16> {
  static constexpr DType value = DType::f16;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct DTypeOf<bool> {
  static constexpr DType value = DType::boolean;
};
template <>
struct DTypeOf<std::int8_t> {
  static constexpr DType value = DType::i8;
};
template <>
struct DTypeOf<Float8E4M3> {
  static constexpr DType value = DType::f8e4m3;
};

template <class T>
inline constexpr DType dtype_of = DTypeOf<T>::value;

}  // namespace rootdk
