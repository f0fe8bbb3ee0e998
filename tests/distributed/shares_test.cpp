#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "rootdk/distributed.h"
#include "support/error_of.h"
#include "support/tensors.h"

namespace rootdk::test {
namespace {

TEST(Shares, ContiguousAndZigzag) {
  EXPECT_EQ(contiguous_shares(10, 3), (Shares{{{0, 3}}, {{3, 6}}, {{6, 10}}}));
  EXPECT_EQ(zigzag_shares(8, 2), (Shares{{{0, 2}, {6, 8}}, {{2, 4}, {4, 6}}}));
  EXPECT_EQ(rows_of(zigzag_shares(9, 2), 0) + rows_of(zigzag_shares(9, 2), 1), 9);
}

TEST(Shares, Striped) {
  EXPECT_EQ(striped_shares(10, 2, 3), (Shares{{{0, 3}, {6, 9}}, {{3, 6}, {9, 10}}}));
  EXPECT_EQ(striped_shares(5, 3, 100), (Shares{{{0, 5}}, {}, {}}));
  EXPECT_EQ(error_of([] { striped_shares(5, 3, 0); }), "striped_shares: runs of 0 rows must have at least 1");
}

// A chunk of every rank in turn: the ring neither waits for slower ranks nor leaves links idle.
TEST(Shares, TheModelPrefersStripesInARing) {
  const DistributedShape shape{.heads = 8, .kv_heads = 2, .q_len = 131072, .kv_len = 131072};
  const auto ring = [&](const Shares& shares, double link_bytes) {
    DistributedParams params{.queries = shares, .scheme = Scheme::ring};
    params.rates.link_bytes = link_bytes;
    const auto explained = explain_distributed(shape, params, {.causal = true});
    EXPECT_EQ(explained.error, "");
    return explained.schemes[0];
  };
  EXPECT_GT(ring(striped_shares(131072, 8), 1e10).efficiency, 0.85);
  EXPECT_LT(ring(zigzag_shares(131072, 8), 1e10).efficiency, 0.75);
}

// The work of a rank under causal: the keys of each of its rows.
double causal_work(const std::vector<RowRange>& share, const std::vector<std::int32_t>& starts) {
  double work = 0;
  for (const RowRange& range : share) {
    for (std::int64_t row = range.begin; row < range.end; ++row) {
      std::size_t s = 0;
      while (row >= starts[s + 1]) ++s;
      work += static_cast<double>(row - starts[s] + 1);
    }
  }
  return work;
}

TEST(Shares, DocumentsAreBalancedByWork) {
  const std::vector<std::int32_t> starts = {0, 3000, 3010, 3500, 3501, 6000, 6007, 9999};
  for (const int ranks : {2, 3, 4, 7}) {
    const Shares shares = document_shares(i32_tensor(starts), ranks, true);
    double most = 0, sum = 0;
    std::int64_t rows = 0;
    for (int r = 0; r < ranks; ++r) {
      const double work = causal_work(shares[static_cast<std::size_t>(r)], starts);
      most = std::max(most, work);
      sum += work;
      rows += rows_of(shares, r);
    }
    EXPECT_EQ(rows, 9999);
    EXPECT_LT(most, 1.1 * sum / ranks) << ranks;
  }
}

// Long documents are cut at multiples of a tile, so that the runs of all ranks have as many tiles as the documents.
TEST(Shares, DocumentsAreCutBetweenTiles) {
  const std::vector<std::int32_t> starts = {0, 700, 9700, 9828, 12328, 29328, 29392, 30092};
  for (const int ranks : {2, 4}) {
    std::int64_t cuts = 0;
    for (const auto& share : document_shares(i32_tensor(starts), ranks, true)) {
      for (const RowRange& range : share) {
        const auto next = std::upper_bound(starts.begin(), starts.end(), range.begin);
        EXPECT_EQ((range.begin - *(next - 1)) % 128, 0) << range.begin << " of " << ranks;
        cuts += range.begin != *(next - 1);
      }
    }
    EXPECT_GT(cuts, 4);
  }
}

TEST(Shares, TheModelPrefersBalancedShares) {
  const DistributedShape shape{.heads = 8, .kv_heads = 2, .q_len = 65536, .kv_len = 65536};
  DistributedParams contiguous{.queries = contiguous_shares(65536, 8)}, zigzag{.queries = zigzag_shares(65536, 8)};
  contiguous.rates.link_bytes = zigzag.rates.link_bytes = 1e10;
  const auto a = explain_distributed(shape, contiguous, {.causal = true});
  const auto b = explain_distributed(shape, zigzag, {.causal = true});
  ASSERT_EQ(a.error + b.error, "");
  const auto gather = [](const DistributedExplanation& e) { return e.schemes[1]; };
  EXPECT_GT(gather(b).efficiency, 0.9);
  EXPECT_LT(gather(a).efficiency, 0.6);
  EXPECT_GE(b.schemes[0].total_seconds, gather(b).total_seconds);
  EXPECT_LT(b.schemes[0].buffer_bytes, gather(b).buffer_bytes);
}

TEST(Shares, TheModelSendsWhatAWindowSees) {
  const DistributedShape shape{.q_len = 65536, .kv_len = 65536};
  const DistributedParams params{.queries = contiguous_shares(65536, 8)};
  const auto all = explain_distributed(shape, params, {.causal = true});
  const auto window = explain_distributed(shape, params, {.causal = true, .window_left = 2000});
  // A chunk of 1024 keys reaches the next rank's queries up to 2000 rows on: two chunks, of 1024 x 128 x 4 bytes each.
  EXPECT_EQ(window.schemes[0].sent_bytes, 2 * 1024 * 128 * 4.0);
  EXPECT_GT(all.schemes[0].sent_bytes, 20 * window.schemes[0].sent_bytes);
}

TEST(Shares, BadNumbers) {
  EXPECT_EQ(error_of([] { contiguous_shares(5, 0); }), "contiguous_shares: 0 ranks must be at least 1");
  EXPECT_EQ(error_of([] { zigzag_shares(-1, 2); }), "zigzag_shares: -1 rows must not be negative");
  EXPECT_EQ(error_of([] { rows_of({}, 3); }), "rows_of: rank 3 of 0");
  EXPECT_THAT(explain_distributed({.heads = 3, .kv_heads = 2}, {.queries = {{}}}).error,
              testing::HasSubstr("heads 3 is not a multiple of kv_heads 2"));
}

}  // namespace
}  // namespace rootdk::test
