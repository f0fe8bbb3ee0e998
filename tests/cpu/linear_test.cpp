// Products with stored weights: every target against the reference, and the promise that a row has the same bits
// whatever other rows are in the call and for any number of threads.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "core/linear_call.h"
#include "rootdk/dtype.h"

namespace rootdk {
namespace {

// Random weights of a format, with what they point to.
struct Weights {
  std::vector<float> f32;
  std::vector<std::uint16_t> halves, block_scales;
  std::vector<std::int8_t> bytes;
  std::vector<float> row_scales;
  WeightMatrix matrix;

  Weights(WeightFormat format, std::int64_t rows, std::int64_t columns, std::uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::uniform_int_distribution<int> byte(-127, 127);
    matrix = {.format = format, .rows = rows, .columns = columns};
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      const float w = normal(random);
      f32.push_back(w);
      halves.push_back(format == WeightFormat::bf16 ? std::bit_cast<std::uint16_t>(BFloat16(w))
                                                    : std::bit_cast<std::uint16_t>(Float16(w)));
      bytes.push_back(static_cast<std::int8_t>(byte(random)));
    }
    for (std::int64_t i = 0; i < rows; ++i) row_scales.push_back(0.01f * (1.0f + std::abs(normal(random))));
    for (std::int64_t i = 0; i < rows * columns / kWeightBlock; ++i) {
      block_scales.push_back(std::bit_cast<std::uint16_t>(BFloat16(0.1f * normal(random))));
    }
    matrix.data = bytes.data();
    if (format == WeightFormat::f32) matrix.data = f32.data();
    if (format == WeightFormat::bf16 || format == WeightFormat::f16) matrix.data = halves.data();
    if (format == WeightFormat::i8) matrix.row_scales = row_scales.data();
    if (format == WeightFormat::i4) matrix.block_scales = block_scales.data();
  }
  Weights(const Weights&) = delete;
};

std::vector<float> normal_numbers(std::int64_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(static_cast<std::size_t>(count));
  for (float& x : numbers) x = normal(random);
  return numbers;
}

std::vector<float> product(const WeightMatrix& weight, std::span<const float> x, const float* bias,
                           std::string_view target, int threads = 2) {
  const std::int64_t rows = static_cast<std::int64_t>(x.size()) / weight.columns;
  std::vector<float> y(static_cast<std::size_t>(rows * weight.rows), NAN);
  linear({.weight = weight,
          .rows = rows,
          .x = x.data(),
          .bias = bias,
          .y = y.data(),
          .execution = {.target = target, .cpu = {.executor = &shared_executor(threads)}}});
  return y;
}

constexpr WeightFormat kFormats[] = {WeightFormat::f32, WeightFormat::bf16, WeightFormat::f16, WeightFormat::i8,
                                     WeightFormat::i4};

class LinearTarget : public ::testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override {
    for (const LinearImplementation& candidate : cpu::linear_implementations()) {
      if (candidate.name != GetParam()) continue;
      if (const std::string why = candidate.answer({}).refusal; !why.empty()) GTEST_SKIP() << why;
      return;
    }
    GTEST_SKIP() << "this build has no target " << GetParam();
  }
};

TEST_P(LinearTarget, AgreesWithTheReference) {
  struct Shape {
    std::int64_t rows, outs, columns;
  };
  for (const Shape& shape : {Shape{1, 37, 64},
                             {1, 8, 1024},
                             {2, 5, 96},
                             {3, 16, 32},
                             {4, 70, 160},
                             {5, 19, 544},
                             {13, 33, 1056},
                             {64, 20, 64},
                             {530, 3, 32}}) {
    for (const WeightFormat format : kFormats) {
      SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.outs << " x " << shape.columns << " format "
                                      << static_cast<int>(format));
      // Only blocks of i4 ask for multiples of 32.
      const std::int64_t columns = format == WeightFormat::i4 ? shape.columns : shape.columns - 3;
      const Weights weights(format, shape.outs, columns, 1);
      const std::vector<float> x = normal_numbers(shape.rows * columns, 2), bias = normal_numbers(shape.outs, 3);
      const std::vector<float> expected = product(weights.matrix, x, bias.data(), "reference");
      const std::vector<float> found = product(weights.matrix, x, bias.data(), GetParam());
      for (std::int64_t i = 0; i < shape.rows * shape.outs; ++i) {
        double size = 1;
        for (std::int64_t k = 0; k < columns; ++k) {
          size += std::abs(x[static_cast<std::size_t>(i / shape.outs * columns + k)] *
                           reference::weight_at(weights.matrix, i % shape.outs, k));
        }
        ASSERT_NEAR(found[static_cast<std::size_t>(i)], expected[static_cast<std::size_t>(i)], 1e-6 * size) << i;
      }
    }
  }
}

TEST_P(LinearTarget, ARowDoesNotDependOnTheOthersOrOnThreads) {
  for (const WeightFormat format : kFormats) {
    for (const std::int64_t columns : {std::int64_t{64}, std::int64_t{1120}}) {
      SCOPED_TRACE(testing::Message() << "format " << static_cast<int>(format) << " columns " << columns);
      const std::int64_t outs = 75, most = 33;
      const Weights weights(format, outs, columns, 4);
      const std::vector<float> x = normal_numbers(most * columns, 5), bias = normal_numbers(outs, 6);
      std::vector<float> alone;
      for (std::int64_t row = 0; row < most; ++row) {
        const std::span one =
            std::span(x).subspan(static_cast<std::size_t>(row * columns), static_cast<std::size_t>(columns));
        const std::vector<float> y = product(weights.matrix, one, bias.data(), GetParam());
        alone.insert(alone.end(), y.begin(), y.end());
      }
      for (const std::int64_t rows : {2, 3, 4, 5, 6, 7, 12, 33}) {
        for (const int threads : {1, 3}) {
          const std::vector<float> y =
              product(weights.matrix, std::span(x).first(static_cast<std::size_t>(rows * columns)), bias.data(),
                      GetParam(), threads);
          EXPECT_EQ(std::memcmp(y.data(), alone.data(), y.size() * sizeof(float)), 0) << rows << " rows";
        }
      }
    }
  }
}

TEST_P(LinearTarget, NoColumnsGiveTheBias) {
  const float bias[] = {1, 2, 3};
  float y[6] = {};
  linear({.weight = {.rows = 3}, .rows = 2, .bias = bias, .y = y, .execution = {.target = GetParam()}});
  for (int i = 0; i < 6; ++i) EXPECT_EQ(y[i], bias[i % 3]);
}

INSTANTIATE_TEST_SUITE_P(All, LinearTarget,
                         ::testing::Values("avx512bf16", "avx512", "avx2", "baseline", "neon", "wasm"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace rootdk
