#include "rootdk/dropout.h"

#include <gtest/gtest.h>

#include <cmath>

namespace rootdk {
namespace {

// The known answers that the authors of Philox publish for ten rounds of philox4x32.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, 0), (PhiloxWords{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  const std::uint32_t ones = 0xffffffffu;
  EXPECT_EQ(philox4x32_10({ones, ones, ones, ones}, ~std::uint64_t{0}),
            (PhiloxWords{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  EXPECT_EQ(philox4x32_10({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, 0x299f31d0a4093822u),
            (PhiloxWords{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

TEST(Dropout, LanesOfTheBlock) {
  const DropoutRule rule{.seed = 77, .threshold = 30000, .keep_scale = 1};
  for (std::uint32_t j = 0; j < 24; ++j) {
    const PhiloxWords words = philox4x32_10({j / 8, 5, 2, 1}, 77);
    const std::uint32_t word = words[j % 8 / 2], lane = j % 2 ? word >> 16 : word & 0xffffu;
    EXPECT_EQ(rule.keeps(1, 2, 5, j), lane >= 30000) << j;
  }
}

TEST(Dropout, ThresholdAndScale) {
  EXPECT_EQ(DropoutRule::make(0, 1).threshold, 0u);
  EXPECT_EQ(DropoutRule::make(0, 1).keep_scale, 1.0f);
  EXPECT_EQ(DropoutRule::make(0.5, 1).threshold, 32768u);
  EXPECT_EQ(DropoutRule::make(0.5, 1).keep_scale, 2.0f);
  EXPECT_EQ(DropoutRule::make(0.9999999, 1).threshold, 65535u);
}

TEST(Dropout, DropsTheShareAskedFor) {
  const DropoutRule rule = DropoutRule::make(0.2, 3);
  int dropped = 0;
  for (std::uint32_t i = 0; i < 200; ++i) {
    for (std::uint32_t j = 0; j < 200; ++j) dropped += !rule.keeps(0, 0, i, j);
  }
  EXPECT_NEAR(dropped / 40000.0, 0.2, 5 * std::sqrt(0.16 / 40000));
}

}  // namespace
}  // namespace rootdk
