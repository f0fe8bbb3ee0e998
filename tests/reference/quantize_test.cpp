// quantize_for_attention: numbers, scales, the mean key, and what spoils nothing.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/fp8_values.h"
#include "rootdk/fp8.h"
#include "support/error_of.h"
#include "support/tensors.h"

namespace rootdk::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

float number_at(const Tensor& numbers, std::int64_t index) {
  return static_cast<float>(numbers.values<Float8E4M3>()[static_cast<std::size_t>(index)]);
}
float scale_at(const Tensor& scales, std::int64_t index) {
  return scales.values<float>()[static_cast<std::size_t>(index)];
}
bool same_bits(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() && std::memcmp(a.view().data, b.view().data, a.bytes()) == 0;
}

struct Operands {
  Tensor q, k, v;
};
Operands operands(std::int64_t q_len, std::int64_t kv_len, std::int64_t head_dim, DType dtype = DType::f32) {
  return {.q = random_tensor(dtype, {1, 2, q_len, head_dim}, 1),
          .k = random_tensor(dtype, {1, 1, kv_len, head_dim}, 2),
          .v = random_tensor(dtype, {1, 1, kv_len, head_dim}, 3)};
}

// Row r of head h belongs to block r / 128; each number is the nearest e4m3 to its share of the block's largest.
TEST(Quantize, EveryBlockOf128RowsHasItsScale) {
  Operands x = operands(300, 200, 16);
  for (float& value : x.q.values<float>().subspan(128 * 16, 128 * 16)) value *= 1000;
  const QuantizedTensors t = quantize_for_attention(x.q, x.k, x.v, {.logits = {.softcap = 50}});
  ASSERT_EQ(t.q_scales.size(2), 3);
  ASSERT_EQ(t.k_scales.size(2), 2);
  const auto q = x.q.values<float>();
  for (std::int64_t block = 0; block < 3; ++block) {
    float largest = 0;
    const std::int64_t end = std::min<std::int64_t>((block + 1) * 128, 300) * 16;
    for (std::int64_t i = block * 128 * 16; i < end; ++i) {
      largest = std::max(largest, std::fabs(q[static_cast<std::size_t>(i)]));
    }
    EXPECT_EQ(scale_at(t.q_scales, block), largest / 448.0f);
    for (std::int64_t i = block * 128 * 16; i < end; ++i) {
      const float exact = q[static_cast<std::size_t>(i)], found = number_at(t.q, i) * scale_at(t.q_scales, block);
      ASSERT_LE(std::fabs(found - exact),
                std::max(std::fabs(exact) / 16, scale_at(t.q_scales, block) / 1024) * 1.0001f);
    }
  }
}

TEST(Quantize, ValuesHaveAScaleForEachChannel) {
  Operands x = operands(4, 150, 8);
  for (std::int64_t j = 0; j < 150; ++j) x.v.values<float>()[static_cast<std::size_t>(j * 8 + 3)] *= 1e4f;
  const QuantizedTensors t = quantize_for_attention(x.q, x.k, x.v);
  for (std::int64_t d = 0; d < 8; ++d) {
    float largest = 0;
    for (std::int64_t j = 0; j < 150; ++j) {
      largest = std::max(largest, std::fabs(x.v.values<float>()[static_cast<std::size_t>(j * 8 + d)]));
    }
    EXPECT_EQ(scale_at(t.v_scales, d), largest / 448.0f);
  }
}

TEST(Quantize, ACommonOffsetOfTheKeysLeavesNoTrace) {
  Operands x = operands(4, 256, 16);
  // Whole numbers that add up to 0: the mean of the shifted keys is the offset, exactly.
  const auto k = x.k.values<float>();
  for (std::size_t i = 0; i < k.size(); ++i) k[i] = (i / 16) % 2 ? -static_cast<float>(i % 7) : 0;
  for (std::size_t i = 0; i < k.size(); i += 32) {
    for (std::size_t d = 0; d < 16; ++d) k[i + d] = -k[i + 16 + d];
  }
  const QuantizedTensors plain = quantize_for_attention(x.q, x.k, x.v);
  for (std::size_t i = 0; i < k.size(); ++i) k[i] += static_cast<float>(1000 + i % 16);
  const QuantizedTensors shifted = quantize_for_attention(x.q, x.k, x.v);
  for (std::int64_t i = 0; i < plain.k.elements(); ++i) ASSERT_EQ(number_at(plain.k, i), number_at(shifted.k, i));
  EXPECT_TRUE(same_bits(plain.k_scales, shifted.k_scales));
  for (std::int64_t d = 0; d < 16; ++d) EXPECT_EQ(scale_at(shifted.key_mean, d), static_cast<float>(1000 + d));
  double dot = 0;
  for (std::size_t d = 0; d < 16; ++d)
    dot += static_cast<double>(x.q.values<float>()[d]) * (1000.0 + static_cast<double>(d));
  EXPECT_FLOAT_EQ(scale_at(shifted.q_shift, 0), static_cast<float>(dot));
}

TEST(Quantize, ASoftcapAndASinkKeepTheMean) {
  Operands x = operands(4, 40, 16);
  for (float& value : x.k.values<float>()) value += 10;
  const Tensor sinks(DType::f32, {2});
  for (const LogitParams& logits : {LogitParams{.softcap = 30}, LogitParams{.sinks = sinks}}) {
    const QuantizedTensors t = quantize_for_attention(x.q, x.k, x.v, {.logits = logits});
    for (const float mean : t.key_mean.values<float>()) EXPECT_EQ(mean, 0);
    for (const float shift : t.q_shift.values<float>()) EXPECT_EQ(shift, 0);
    EXPECT_GT(number_at(t.k, 0), 0);
  }
}

TEST(Quantize, WhatIsNotFiniteSpoilsOnlyItself) {
  Operands x = operands(8, 200, 16);
  const QuantizedTensors before = quantize_for_attention(x.q, x.k, x.v, {.logits = {.softcap = 30}});
  x.k.values<float>()[5 * 16 + 2] = kNan;
  x.k.values<float>()[6 * 16 + 3] = kInfinity;
  x.v.values<float>()[7 * 16 + 4] = -kInfinity;
  const QuantizedTensors after = quantize_for_attention(x.q, x.k, x.v, {.logits = {.softcap = 30}});
  EXPECT_TRUE(std::isnan(number_at(after.k, 5 * 16 + 2)));
  EXPECT_TRUE(std::isnan(number_at(after.k, 6 * 16 + 3)));
  EXPECT_TRUE(std::isnan(number_at(after.v, 7 * 16 + 4)));
  int changed = 0;
  for (std::size_t i = 0; i < before.k.values<Float8E4M3>().size(); ++i) {
    changed += before.k.values<Float8E4M3>()[i].bits != after.k.values<Float8E4M3>()[i].bits;
    changed += before.v.values<Float8E4M3>()[i].bits != after.v.values<Float8E4M3>()[i].bits;
  }
  EXPECT_EQ(changed, 3);
  // With the mean taken off, too, every other number is finite.
  const QuantizedTensors centred = quantize_for_attention(x.q, x.k, x.v);
  int not_finite = 0;
  for (const Float8E4M3 number : centred.k.values<Float8E4M3>()) not_finite += std::isnan(static_cast<float>(number));
  EXPECT_EQ(not_finite, 2);
}

TEST(Quantize, ZerosAndTinyNumbersHaveScaleOne) {
  Tensor q(DType::f32, {1, 1, 2, 8}), k(DType::f32, {1, 1, 2, 8}), v(DType::f32, {1, 1, 2, 8});
  for (float& x : q.values<float>()) x = 1e-40f;
  const QuantizedTensors t = quantize_for_attention(q, k, v);
  EXPECT_EQ(scale_at(t.q_scales, 0), 1);
  EXPECT_EQ(scale_at(t.k_scales, 0), 1);
  EXPECT_EQ(scale_at(t.v_scales, 0), 1);
  EXPECT_EQ(number_at(t.q, 0), 0);
  // The largest f32 keep their size.
  for (float& x : q.values<float>()) x = std::numeric_limits<float>::max();
  EXPECT_EQ(number_at(quantize_for_attention(q, k, v).q, 0), 448);
}

TEST(Quantize, PaddingTakesNoPart) {
  Operands x = operands(4, 200, 16);
  const Tensor lengths = i32_tensor({130});
  const QuantizedTensors clean = quantize_for_attention(x.q, x.k, x.v, {.kv_lengths = lengths});
  for (std::size_t i = 130 * 16; i < 200 * 16; ++i) x.k.values<float>()[i] = x.v.values<float>()[i] = kNan;
  const QuantizedTensors padded = quantize_for_attention(x.q, x.k, x.v, {.kv_lengths = lengths});
  EXPECT_TRUE(same_bits(clean.k, padded.k));
  EXPECT_TRUE(same_bits(clean.v, padded.v));
  EXPECT_TRUE(same_bits(clean.key_mean, padded.key_mean));
  for (std::int64_t i = 130 * 16; i < 200 * 16; ++i) ASSERT_EQ(number_at(padded.k, i), 0);
}

TEST(Quantize, PackedSequencesHaveTheNumbersThatTheyHaveAlone) {
  const Operands x = operands(400, 500, 16, DType::bf16);
  const std::vector<std::int32_t> q_starts{0, 130, 130, 400}, kv_starts{0, 3, 260, 500};
  const Tensor q_tensor = i32_tensor(q_starts), kv_tensor = i32_tensor(kv_starts);
  const QuantizedTensors packed = quantize_for_attention(x.q, x.k, x.v, {.q_starts = q_tensor, .kv_starts = kv_tensor});
  ASSERT_EQ(packed.q_scales.size(2), 400 / 128 + 3);
  for (std::int64_t s = 0; s < 3; ++s) {
    const auto i = static_cast<std::size_t>(s);
    const std::int64_t q_begin = q_starts[i], kv_begin = kv_starts[i];
    const QuantizedTensors alone = quantize_for_attention(x.q.view().slice(2, q_begin, q_starts[i + 1]),
                                                          x.k.view().slice(2, kv_begin, kv_starts[i + 1]),
                                                          x.v.view().slice(2, kv_begin, kv_starts[i + 1]));
    for (std::int64_t n = 0; n < alone.k.elements(); ++n) {
      ASSERT_EQ(number_at(packed.k, kv_begin * 16 + n), number_at(alone.k, n));
      ASSERT_EQ(number_at(packed.v, kv_begin * 16 + n), number_at(alone.v, n));
    }
    for (std::int64_t block = 0; block < alone.k_scales.size(2); ++block) {
      EXPECT_EQ(scale_at(packed.k_scales, fp8_first_block(kv_begin, s) + block), scale_at(alone.k_scales, block));
    }
    for (std::int64_t h = 0; h < 2; ++h) {
      for (std::int64_t block = 0; block < alone.q_scales.size(2); ++block) {
        EXPECT_EQ(scale_at(packed.q_scales, h * packed.q_scales.size(2) + fp8_first_block(q_begin, s) + block),
                  scale_at(alone.q_scales, h * alone.q_scales.size(2) + block));
      }
    }
    for (std::int64_t d = 0; d < 16; ++d) EXPECT_EQ(scale_at(packed.v_scales, s * 16 + d), scale_at(alone.v_scales, d));
  }
}

TEST(Quantize, TheRotationIsOrthogonal) {
  for (const std::int64_t dim : {1, 6, 64, 96, 128}) {
    const Tensor a = random_tensor(DType::f32, {1, dim}, 1), b = random_tensor(DType::f32, {1, dim}, 2);
    Tensor ra = clone(a), rb = clone(b);
    rotate_channels(ra.values<float>());
    rotate_channels(rb.values<float>());
    double dot = 0, rotated = 0;
    for (std::size_t d = 0; d < static_cast<std::size_t>(dim); ++d) {
      dot += static_cast<double>(a.values<float>()[d]) * b.values<float>()[d];
      rotated += static_cast<double>(ra.values<float>()[d]) * rb.values<float>()[d];
    }
    EXPECT_NEAR(dot, rotated, 1e-5 * static_cast<double>(dim));
    if (dim == 128) {
      EXPECT_GT(difference(a, ra).largest, 0.5);
    }
    rotate_channels_back(ra.values<float>());
    EXPECT_LT(difference(a, ra).largest, 1e-5);
  }
}

TEST(Quantize, TheRotationSpreadsOneLargeChannel) {
  Operands x = operands(4, 64, 64);
  for (float& value : x.k.values<float>()) value = 0;
  for (std::size_t j = 0; j < 64; ++j) x.k.values<float>()[j * 64 + 7] = j % 2 ? 8.0f : -8.0f;
  const QuantizedTensors t = quantize_for_attention(x.q, x.k, x.v, {.fp8 = {.rotate = true}});
  EXPECT_FLOAT_EQ(scale_at(t.k_scales, 0), 1.0f / 448);  // 8 / sqrt(64)
  for (std::int64_t i = 0; i < 64 * 64; ++i) ASSERT_EQ(std::fabs(number_at(t.k, i)), 448);
}

TEST(Quantize, RefusesWhatMakesNoSense) {
  Operands x = operands(4, 40, 16);
  const Tensor f64 = random_tensor(DType::f64, {1, 2, 4, 16}, 1),
               f64_keys = random_tensor(DType::f64, {1, 1, 40, 16}, 1);
  EXPECT_NE(error_of([&] { quantize_for_attention(f64, f64_keys, f64_keys); }).find("it is f64"), std::string::npos);
  QuantizedTensors t = quantize_for_attention(x.q, x.k, x.v);
  EXPECT_NE(error_of([&] { quantize_for_attention(t.q, t.k, t.v); }).find("q is f8e4m3 already"), std::string::npos);
  QuantizedViews views = t.views();
  views.k_scales = {};
  EXPECT_NE(error_of([&] { quantize_for_attention(x.q, x.k, x.v, views); }).find("to.k_scales is not given"),
            std::string::npos);
  views = t.views();
  views.v_scales = views.k_scales;
  EXPECT_NE(error_of([&] { quantize_for_attention(x.q, x.k, x.v, views); }).find("expected [1, 1, 16]"),
            std::string::npos);
  EXPECT_NE(error_of([&] { quantize_for_attention({}, x.k, x.v); }).find("q is not given"), std::string::npos);
}

}  // namespace
}  // namespace rootdk::test
