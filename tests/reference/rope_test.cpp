#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <numbers>

#include "rootdk/positions.h"
#include "support/tensors.h"

namespace rootdk::test {
namespace {

std::vector<double> frequencies(std::int64_t head_dim, const RopeParams& params, double* magnitude = nullptr) {
  Tensor out(DType::f64, {(params.rotary_dim ? params.rotary_dim : head_dim) / 2});
  const double factor = rope_frequencies(out, head_dim, params);
  if (magnitude) *magnitude = factor;
  return doubles(out);
}

TEST(Rope, PlainFrequencies) {
  const std::vector<double> f = frequencies(8, {});
  for (std::size_t d = 0; d < 4; ++d) EXPECT_DOUBLE_EQ(f[d], 1 / std::pow(10, static_cast<double>(d)));
}

TEST(Rope, LinearDividesPositions) {
  const std::vector<double> f = frequencies(8, {.scaling = RopeScaling::linear, .factor = 4});
  for (std::size_t d = 0; d < 4; ++d) EXPECT_DOUBLE_EQ(f[d], 0.25 / std::pow(10, static_cast<double>(d)));
}

// NTK: the fastest pair is untouched, the slowest is divided by exactly the factor.
TEST(Rope, NtkStretchesTheSlowestPairByTheFactor) {
  const std::vector<double> plain = frequencies(16, {});
  const std::vector<double> f = frequencies(16, {.scaling = RopeScaling::ntk, .factor = 8});
  EXPECT_DOUBLE_EQ(f.front(), 1);
  EXPECT_NEAR(f.back(), plain.back() / 8, 1e-15);
  EXPECT_EQ(frequencies(2, {.scaling = RopeScaling::ntk, .factor = 8}).front(), 1);
}

// YaRN with 64 dimensions and context 2048: pairs turning 32 times or more are below 8.07, once or less above 20.10.
TEST(Rope, YarnBlends) {
  const RopeParams p{.scaling = RopeScaling::yarn, .factor = 16, .original_max_position = 2048};
  double magnitude = 0;
  const std::vector<double> f = frequencies(64, p, &magnitude), plain = frequencies(64, {});
  EXPECT_DOUBLE_EQ(magnitude, 0.1 * std::log(16.0) + 1);
  const double ln_base = std::log(10000.0);
  const double low = std::floor(64 * std::log(2048 / (32 * 2 * std::numbers::pi)) / (2 * ln_base));
  const double high = std::ceil(64 * std::log(2048 / (2 * std::numbers::pi)) / (2 * ln_base));
  EXPECT_EQ(low, 8);
  EXPECT_EQ(high, 21);
  for (int d = 0; d < 32; ++d) {
    const double ramp = d <= 8 ? 0 : d >= 21 ? 1 : (d - 8) / 13.0;
    const auto n = static_cast<std::size_t>(d);
    EXPECT_NEAR(f[n], plain[n] * (1 - ramp) + plain[n] / 16 * ramp, 1e-15) << d;
  }
  RopeParams exact = p;
  exact.truncate = false;
  exact.attention_factor = 1.5;
  const std::vector<double> g = frequencies(64, exact, &magnitude);
  EXPECT_DOUBLE_EQ(magnitude, 1.5);
  EXPECT_LT(g[9], f[9] + 1e-3);
  EXPECT_NE(g[12], f[12]);
}

// Llama 3.1: factor 8, 1 and 4 waves over 8192 positions.
TEST(Rope, Llama3ByWavelength) {
  const RopeParams p{.base = 500000, .scaling = RopeScaling::llama3, .factor = 8, .original_max_position = 8192};
  const std::vector<double> f = frequencies(128, p), plain = frequencies(128, {.base = 500000});
  int kept = 0, divided = 0, blended = 0;
  for (std::size_t d = 0; d < 64; ++d) {
    const double wavelength = 2 * std::numbers::pi / plain[d];
    if (wavelength < 8192 / 4.0) {
      EXPECT_DOUBLE_EQ(f[d], plain[d]);
      ++kept;
    } else if (wavelength > 8192) {
      EXPECT_DOUBLE_EQ(f[d], plain[d] / 8);
      ++divided;
    } else {
      const double smooth = (8192 / wavelength - 1) / 3;
      EXPECT_NEAR(f[d], (1 - smooth) * plain[d] / 8 + smooth * plain[d], 1e-16);
      ++blended;
    }
  }
  EXPECT_EQ(kept, 29);
  EXPECT_EQ(blended, 6);
  EXPECT_EQ(divided, 29);
}

// Rotation as complex multiplication, in both layouts, partial, with offset.
TEST(Rope, RotatesPairsAsComplexNumbers) {
  for (const RopeLayout layout : {RopeLayout::half_split, RopeLayout::interleaved}) {
    const RopeParams p{.layout = layout, .rotary_dim = 6, .offset = 5};
    const Tensor x = random_tensor(DType::f64, {2, 3, 4, 8}, 1);
    Tensor out(DType::f64, {2, 3, 4, 8});
    rope(x, out, p);
    const std::vector<double> a = doubles(x), b = doubles(out), f = frequencies(8, p);
    for (std::size_t row = 0; row < 24; ++row) {
      for (std::size_t d = 0; d < 3; ++d) {
        const std::size_t first = row * 8 + (layout == RopeLayout::half_split ? d : 2 * d);
        const std::size_t second = first + (layout == RopeLayout::half_split ? 3 : 1);
        const auto turned =
            std::complex(a[first], a[second]) * std::polar(1.0, static_cast<double>(row % 4 + 5) * f[d]);
        EXPECT_NEAR(b[first], turned.real(), 1e-14);
        EXPECT_NEAR(b[second], turned.imag(), 1e-14);
      }
      EXPECT_EQ(b[row * 8 + 6], a[row * 8 + 6]);
      EXPECT_EQ(b[row * 8 + 7], a[row * 8 + 7]);
    }
  }
}

// What RoPE is for: q . k depends on the distance alone.
TEST(Rope, ScoresDependOnTheDistance) {
  const Tensor q = random_tensor(DType::f64, {1, 1, 1, 16}, 1), k = random_tensor(DType::f64, {1, 1, 1, 16}, 2);
  auto score = [&](std::int64_t i, std::int64_t j) {
    Tensor a(DType::f64, {1, 1, 1, 16}), b(DType::f64, {1, 1, 1, 16});
    rope(q, a, {.offset = i});
    rope(k, b, {.offset = j});
    double sum = 0;
    for (std::size_t d = 0; d < 16; ++d) sum += doubles(a)[d] * doubles(b)[d];
    return sum;
  };
  EXPECT_NEAR(score(3, 1), score(103, 101), 1e-12);
}

TEST(Rope, PositionsPerTokenAndInPlace) {
  Tensor x = random_tensor(DType::f32, {2, 1, 3, 4}, 1);
  Tensor at_offset(DType::f32, {2, 1, 3, 4});
  rope(x, at_offset, {.offset = 9});
  Tensor positions(DType::i64, {1, 3});
  for (std::int64_t i = 0; i < 3; ++i) positions.values<std::int64_t>()[static_cast<std::size_t>(i)] = 9 + i;
  rope(x, x, {}, positions);
  EXPECT_EQ(difference(at_offset, x).largest, 0);
}

TEST(Rope, BackwardIsTheAdjoint) {
  for (const RopeScaling scaling : {RopeScaling::none, RopeScaling::yarn}) {
    const RopeParams p{.rotary_dim = 4, .scaling = scaling, .factor = 4, .original_max_position = 16, .offset = 3};
    const Tensor x = random_tensor(DType::f64, {1, 2, 3, 6}, 1), g = random_tensor(DType::f64, {1, 2, 3, 6}, 2);
    Tensor out(DType::f64, {1, 2, 3, 6}), grad(DType::f64, {1, 2, 3, 6});
    rope(x, out, p);
    rope_backward(g, grad, p);
    double forward = 0, backward = 0;
    for (std::size_t n = 0; n < 36; ++n) {
      forward += doubles(out)[n] * doubles(g)[n];
      backward += doubles(x)[n] * doubles(grad)[n];
    }
    EXPECT_NEAR(forward, backward, 1e-12);
  }
}

}  // namespace
}  // namespace rootdk::test
