// A text whose n x n matrix (17 GB a head) would not fit: 65536 tokens, inspected within 2 GB.

#include <gtest/gtest.h>

#include <cmath>

#include "lab/inspect/inspection.h"
#include "lab/peak_memory.h"
#include "models/config.h"

namespace rootdk::lab {
namespace {

TEST(InspectLong, SixtyFiveThousandTokensInTwoGigabytes) {
  constexpr std::int64_t kTokens = 65536;
  Transformer model(make_config(
      {.vocab_size = 64, .d_model = 16, .layers = 1, .heads = 1, .context = kTokens, .position_encoding = "rope"}));
  initialize(model, 1);
  const LoadedModel subject{.name = "random", .model = std::move(model)};
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < kTokens; ++i) ids.push_back(static_cast<std::int32_t>(i * i % 61));
  const Inspection inspection = inspect(subject, ids, {});
  ASSERT_EQ(inspection.heads.size(), 1U);
  for (const HeadProfile& head : inspection.heads) {
    EXPECT_EQ(head.rows, kTokens);
    EXPECT_EQ(head.map_rows, 64);
    // Every row's weights sum to 1: so do the columns', over all rows, and so does the pooled map, row by row.
    double mass = 0;
    for (float column : head.column_mass) mass += column;
    EXPECT_NEAR(mass, kTokens, 1e-3 * kTokens);
    for (std::int64_t r = 0; r < 64; ++r) {
      double row = 0;
      for (std::int64_t c = 0; c < 64; ++c) row += head.map[static_cast<std::size_t>(r * 64 + c)];
      EXPECT_NEAR(row, 1, 1e-3);
    }
    // Small random weights attend almost evenly: half of the text away in the mean, over rows of mean length n / 2.
    EXPECT_GT(head.score(HeadLabel::broad), 0.9);
    EXPECT_NEAR(head.mean_distance, kTokens / 4.0, 0.05 * kTokens);
    EXPECT_EQ(head.label.label, HeadLabel::broad);
  }
  EXPECT_LT(peak_memory(), std::int64_t{2} << 30);
}

}  // namespace
}  // namespace rootdk::lab
