// Products with stored weights: every target against the reference, and the promise that a row has the same bits
// whatever other rows are in the call and for any number of threads.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "core/linear_call.h"
#include "cpu/decode_targets.h"
#include "cpu/linear.h"
#include "cpu/processor.h"
#include "rootdk/dtype.h"

#ifdef ROOTDK_EMULATED_AMX
#include "cpu/linear_amx_emulated.h"
#endif

namespace rootdk {
namespace {

// Random weights of a format, with what they point to.
struct Weights {
  std::vector<float> f32;
  std::vector<std::uint16_t> halves, block_scales;
  std::vector<std::int8_t> bytes;
  std::vector<float> row_scales;
  WeightMatrix matrix;

  Weights(WeightFormat format, std::int64_t rows, std::int64_t columns, std::uint32_t seed, bool rounds_x = false) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::uniform_int_distribution<int> byte(-127, 127);
    matrix = {.format = format, .rows = rows, .columns = columns, .rounds_x = rounds_x};
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      const float w = normal(random);
      f32.push_back(w);
      halves.push_back(format == WeightFormat::bf16 ? std::bit_cast<std::uint16_t>(BFloat16(w))
                                                    : std::bit_cast<std::uint16_t>(Float16(w)));
    }
    for (std::int64_t i = 0; i < (is_integer(format) ? bytes_of(matrix) : 0); ++i) {  // with what is padding
      bytes.push_back(static_cast<std::int8_t>(byte(random)));
    }
    for (std::int64_t i = 0; i < rows; ++i) row_scales.push_back(0.01f * (1.0f + std::abs(normal(random))));
    for (std::int64_t i = 0; i < groups_of(rows) * blocks_of(columns) * kWeightGroup; ++i) {
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

// multiply_weights(), with one more target: amx on tiles in software.
void multiply(const LinearCall& call) {
#ifdef ROOTDK_EMULATED_AMX
  if (call.execution.target == "emulated_amx") {
    return cpu::run_linear(call, cpu::with_tiles(cpu::avx512bf16_linear(), cpu::emulated_amx_linear()));
  }
#endif
  multiply_weights(call);
}

std::vector<float> product(const WeightMatrix& weight, std::span<const float> x, const float* bias,
                           std::string_view target, int threads = 2) {
  const std::int64_t rows = static_cast<std::int64_t>(x.size()) / weight.columns;
  std::vector<float> y(static_cast<std::size_t>(rows * weight.rows), NAN);
  const LinearProduct only{.weight = weight, .bias = bias, .y = y.data()};
  multiply({.products = {&only, 1},
            .rows = rows,
            .x = x.data(),
            .execution = {.target = target, .cpu = {.executor = &shared_executor(threads)}}});
  return y;
}

// Every format, and bf16 weights that round x.
struct Kind {
  WeightFormat format;
  bool rounds_x = false;
};
constexpr Kind kKinds[] = {{WeightFormat::f32}, {WeightFormat::bf16}, {WeightFormat::bf16, true},
                           {WeightFormat::f16}, {WeightFormat::i8},   {WeightFormat::i4}};

class LinearTarget : public ::testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override {
#ifdef ROOTDK_EMULATED_AMX
    if (GetParam() == "emulated_amx") {
      if (cpu::processor().avx512bf16 && cpu::processor().avx512vnni) return;
      GTEST_SKIP() << "this processor has no avx512_bf16 with avx512_vnni";
    }
#endif
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
                             {515, 40, 96},
                             {530, 3, 32}}) {
    for (const auto& [format, rounds_x] : kKinds) {
      SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.outs << " x " << shape.columns << " format "
                                      << static_cast<int>(format) << (rounds_x ? " rounds x" : ""));
      // Only blocks of i4 ask for multiples of 32.
      const std::int64_t columns = format == WeightFormat::i4 ? shape.columns : shape.columns - 3;
      const Weights weights(format, shape.outs, columns, 1, rounds_x);
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
  for (const auto& [format, rounds_x] : kKinds) {
    for (const std::int64_t columns : {std::int64_t{64}, std::int64_t{1120}}) {
      SCOPED_TRACE(testing::Message() << "format " << static_cast<int>(format) << " rounds x " << rounds_x
                                      << " columns " << columns);
      const std::int64_t outs = 75, most = 40;
      const Weights weights(format, outs, columns, 4, rounds_x);
      const std::vector<float> x = normal_numbers(most * columns, 5), bias = normal_numbers(outs, 6);
      std::vector<float> alone;
      for (std::int64_t row = 0; row < most; ++row) {
        const std::span one =
            std::span(x).subspan(static_cast<std::size_t>(row * columns), static_cast<std::size_t>(columns));
        const std::vector<float> y = product(weights.matrix, one, bias.data(), GetParam());
        alone.insert(alone.end(), y.begin(), y.end());
      }
      for (const std::int64_t rows : {2, 3, 4, 5, 6, 7, 8, 12, 13, 32, 40}) {
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

// What the reference says about blocks that cannot be rounded: nothing counts below 2^-100, and what is not finite
// makes its own row NaN and no other.
TEST_P(LinearTarget, BlocksOfOddNumbers) {
  for (const WeightFormat format : {WeightFormat::i8, WeightFormat::i4}) {
    const std::int64_t outs = 21, columns = 64, rows = 7;
    const Weights weights(format, outs, columns, 7);
    std::vector<float> x = normal_numbers(rows * columns, 8);
    for (std::int64_t k = 0; k < kWeightBlock; ++k) {
      const auto at = static_cast<std::size_t>(k);
      x[at] *= 1e-33f;                                         // row 0, first block
      x[at + static_cast<std::size_t>(columns)] = 0;           // row 1
      x[at + static_cast<std::size_t>(2 * columns)] *= 3e34f;  // row 2
    }
    x[static_cast<std::size_t>(3 * columns + 40)] = INFINITY;
    x[static_cast<std::size_t>(5 * columns + 3)] = NAN;
    const std::vector<float> expected = product(weights.matrix, x, nullptr, "reference");
    const std::vector<float> found = product(weights.matrix, x, nullptr, GetParam());
    for (std::int64_t i = 0; i < rows * outs; ++i) {
      const std::int64_t row = i / outs;
      const float e = expected[static_cast<std::size_t>(i)], f = found[static_cast<std::size_t>(i)];
      EXPECT_EQ(std::isnan(e), row == 3 || row == 5) << i;
      EXPECT_EQ(std::isnan(f), std::isnan(e)) << i;
      if (!std::isnan(e)) {
        EXPECT_NEAR(f, e, 1e-4 * (1 + std::abs(e))) << i;
      }
    }
  }
}

// Sums of huge numbers become finite again with the scales of the weights: only what is too large in the end is not.
TEST_P(LinearTarget, IntegersOfHugeNumbersDoNotOverflowOnTheWay) {
  for (const WeightFormat format : {WeightFormat::i8, WeightFormat::i4}) {
    SCOPED_TRACE(static_cast<int>(format));
    const std::int64_t outs = 21, columns = 1024;
    for (const std::int64_t rows : {1, 7, 33}) {
      Weights weights(format, outs, columns, 11);
      for (float& scale : weights.row_scales) scale *= 1e-4f;
      std::vector<float> x = normal_numbers(rows * columns, 12);
      for (float& number : x) number *= 6e37f;
      for (std::int64_t k = 0; k < columns; ++k) x[static_cast<std::size_t>(k)] *= 1e-38f;  // row 0 is ordinary
      if (format == WeightFormat::i4) {  // its scales make outputs smaller by themselves
        for (std::uint16_t& scale : weights.block_scales) {
          scale = std::bit_cast<std::uint16_t>(BFloat16(1e-5f * static_cast<float>(std::bit_cast<BFloat16>(scale))));
        }
      }
      const std::vector<float> expected = product(weights.matrix, x, nullptr, "reference");
      const std::vector<float> found = product(weights.matrix, x, nullptr, GetParam());
      for (std::int64_t i = 0; i < rows * outs; ++i) {
        double size = 0;
        for (std::int64_t k = 0; k < columns; ++k) {
          size += std::abs(x[static_cast<std::size_t>(i / outs * columns + k)] *
                           reference::weight_at(weights.matrix, i % outs, k));
        }
        ASSERT_TRUE(std::isfinite(expected[static_cast<std::size_t>(i)])) << i;
        ASSERT_NEAR(found[static_cast<std::size_t>(i)], expected[static_cast<std::size_t>(i)], 1e-6 * size) << i;
      }
    }
  }
}

TEST_P(LinearTarget, ProductsThatShareXGiveWhatEachGivesAlone) {
  for (const auto& [format, rounds_x] : kKinds) {
    for (const std::int64_t rows : {1, 4, 9, 33}) {
      SCOPED_TRACE(testing::Message() << "format " << static_cast<int>(format) << " rounds x " << rounds_x << " rows "
                                      << rows);
      const std::int64_t columns = 352;
      const Weights first(format, 150, columns, 13, rounds_x), second(format, 17, columns, 14, rounds_x),
          third(format, 260, columns, 15, rounds_x);
      const std::vector<float> x = normal_numbers(rows * columns, 16), bias = normal_numbers(17, 17);
      std::vector<float> y[3];
      std::vector<LinearProduct> products;
      for (const Weights* weights : {&first, &second, &third}) {
        std::vector<float>& mine = y[products.size()];
        mine.assign(static_cast<std::size_t>(rows * weights->matrix.rows), NAN);
        products.push_back({.weight = weights->matrix, .y = mine.data()});
      }
      products[1].bias = bias.data();
      multiply({.products = products,
                .rows = rows,
                .x = x.data(),
                .execution = {.target = GetParam(), .cpu = {.executor = &shared_executor(3)}}});
      for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(y[i], product(products[i].weight, x, products[i].bias, GetParam())) << i;
      }
    }
  }
}

// The integers of x lose at most half of 1/127 of the largest number of a block.
TEST_P(LinearTarget, IntegersOfXAreNear) {
  const std::int64_t columns = 96, outs = 16;
  const Weights weights(WeightFormat::i8, outs, columns, 9);
  const std::vector<float> x = normal_numbers(columns, 10);
  const std::vector<float> found = product(weights.matrix, x, nullptr, GetParam());
  for (std::int64_t o = 0; o < outs; ++o) {
    double exact = 0, bound = 0;
    for (std::int64_t k = 0; k < columns; ++k) {
      const std::int64_t block = k / kWeightBlock * kWeightBlock;
      float largest = 0;
      for (std::int64_t i = 0; i < kWeightBlock; ++i) {
        largest = std::max(largest, std::abs(x[static_cast<std::size_t>(block + i)]));
      }
      const double w = reference::weight_at(weights.matrix, o, k);
      exact += x[static_cast<std::size_t>(k)] * w;
      bound += std::abs(w) * largest / 254;
    }
    EXPECT_NEAR(found[static_cast<std::size_t>(o)], exact, 1.0001 * bound);
    EXPECT_NE(found[static_cast<std::size_t>(o)], static_cast<float>(exact));
  }
}

TEST_P(LinearTarget, NoColumnsGiveTheBias) {
  const float bias[] = {1, 2, 3};
  float y[6] = {};
  const LinearProduct only{.weight = {.rows = 3}, .bias = bias, .y = y};
  multiply({.products = {&only, 1}, .rows = 2, .execution = {.target = GetParam()}});
  for (int i = 0; i < 6; ++i) EXPECT_EQ(y[i], bias[i % 3]);
  // Many rows, for targets with tiles.
  std::vector<float> many(3 * 20);
  for (const auto& [format, rounds_x] : kKinds) {
    const std::uint16_t scales[kWeightGroup] = {};
    const float row_scales[] = {1, 1, 1};
    const LinearProduct empty{.weight = {.format = format,
                                         .rows = 3,
                                         .rounds_x = rounds_x,
                                         .row_scales = format == WeightFormat::i8 ? row_scales : nullptr,
                                         .block_scales = format == WeightFormat::i4 ? scales : nullptr},
                              .bias = bias,
                              .y = many.data()};
    multiply({.products = {&empty, 1}, .rows = 20, .execution = {.target = GetParam()}});
    for (std::size_t i = 0; i < many.size(); ++i) ASSERT_EQ(many[i], bias[i % 3]) << static_cast<int>(format);
  }
}

#ifdef ROOTDK_EMULATED_AMX
// Sums of blocks are exact, and scales follow in one order: tiles give integer weights the bits of vpdpbusd.
TEST(LinearTiles, GiveIntegersTheBitsOfBytes) {
  if (!cpu::processor().avx512bf16 || !cpu::processor().avx512vnni) GTEST_SKIP() << "no avx512_bf16 with avx512_vnni";
  for (const WeightFormat format : {WeightFormat::i8, WeightFormat::i4}) {
    for (const std::int64_t columns : {std::int64_t{96}, std::int64_t{2048}}) {
      const Weights weights(format, 75, columns, 18);
      const std::vector<float> x = normal_numbers(37 * columns, 19), bias = normal_numbers(75, 20);
      EXPECT_EQ(product(weights.matrix, x, bias.data(), "emulated_amx"),
                product(weights.matrix, x, bias.data(), "avx512bf16"));
    }
  }
}
#endif

// Generation rounds activations where this says that it pays.
TEST(LinearTargets, SomeHaveProductsOfBf16) {
  for (const LinearImplementation& candidate : cpu::linear_implementations()) {
    const bool expected = candidate.name.ends_with("bf16") || candidate.name == "amx";
    EXPECT_EQ(cpu::has_bf16_products(candidate.name), expected) << candidate.name;
  }
  EXPECT_FALSE(cpu::has_bf16_products("reference"));
}

INSTANTIATE_TEST_SUITE_P(All, LinearTarget,
                         ::testing::Values("amx", "emulated_amx", "avx512bf16", "avx512", "avx2", "baseline",
                                           "neonbf16", "neondot", "neon", "wasm"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace rootdk
