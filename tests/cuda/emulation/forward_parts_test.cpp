// Parts of the forward kernel that need no wgmma, on the host: row maxima, masks, and how rows become tiles and
// tiles are dealt.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "cuda/emulation/block.h"
#include "cuda/hopper/forward/tall_tiles.h"
#include "cuda/hopper/shared/logit_terms.cuh"
#include "cuda/hopper/shared/softmax.cuh"
#include "cuda/hopper/shared/work_tiles.cuh"

namespace rootdk::test {
namespace {

using namespace cuda::hopper;

constexpr int kScores = 64;  // of a thread: two rows of 32

TEST(RowMaxima, OfThreeAtATimeAreThePlainOnes) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (const float mean : {-30.f, -2.f, 0.f, 2.f, 30.f}) {
    for (const float bound : {-INFINITY, -31.f, -0.5f, -0.f, 0.f, 0.5f, 31.f}) {
      for (int round = 0; round < 20; ++round) {
        float s[kScores];
        for (float& x : s) x = mean + normal(random);
        if (round % 4 == 1) s[round] = -INFINITY;
        const float bounds[2] = {bound, mean};
        float plain[2], of_three[2];
        row_maxima<4>(s, plain);
        row_maxima_above<4>(s, bounds, of_three);
        for (int r = 0; r < 2; ++r) {
          EXPECT_EQ(std::max(of_three[r], bounds[r]), std::max(plain[r], bounds[r])) << "mean " << mean << " row " << r;
        }
        float largest = 0;
        for (const float x : s) largest = std::max(largest, std::abs(x));
        EXPECT_EQ(largest_magnitude(s, plain), largest);
      }
    }
  }
}

// A thread's first column is 2 (lane % 4); what a row sees may begin and end before, inside and behind the tile.
TEST(Masks, LeaveTheKeysOfTheRangeAlone) {
  constexpr int kTile = 384;  // first key of the tile
  const std::vector<int> ends = {0, 300, 383, 384, 385, 386, 391, 392, 400, 447, 448, 510, 511, 512, 513, 900};
  for (const int lane : {0, 1, 2, 3}) {
    for (const int begin : ends) {
      for (const int end : ends) {
        float s[kScores];
        std::fill(std::begin(s), std::end(s), 1.f);
        const int begins[2] = {begin, 390}, ends_of_rows[2] = {end, 391};
        mask_outside(s, begins, ends_of_rows, kTile + 2 * lane);
        for_each_score(s, [&](float x, int r, int offset) {
          const int key = kTile + 2 * lane + offset;
          const bool seen = key >= begins[r] && key < ends_of_rows[r];
          EXPECT_EQ(x, seen ? 1.f : -INFINITY)
              << "key " << key << " of [" << begins[r] << ", " << ends_of_rows[r] << ")";
        });
      }
    }
  }
}

template <bool Ranged, int Consumers>
struct Tiling {
  static constexpr bool kRanged = Ranged;
  static constexpr int kBlockQ = 64 * Consumers, kBlockKv = 128;
};

// Every row in one tile, and of warpgroups with nothing to do at most those of the first tile and of the end.
template <class C>
void check_tiles() {
  for (int q_len = 1; q_len <= 700; ++q_len) {
    ForwardParams p;
    p.heads = p.sequences = p.heads_together = 1;
    p.q_len = p.kv_len = q_len;
    p.left = p.right = kNoLimit;
    p.q_tiles = p.tiles = (q_len + C::kBlockQ - 1) / C::kBlockQ;
    std::vector<int> seen(q_len);
    for (int index = 0; index < p.tiles; ++index) {
      const WorkTile tile = work_tile<C>(index, p);
      const int end = query_end<C>(tile);
      ASSERT_LT(tile.q0, end) << "q_len " << q_len;
      ASSERT_LE(end - tile.q0, C::kBlockQ);
      if (C::kRanged && tile.q0 > 0) {
        EXPECT_GT(end - tile.q0, C::kBlockQ - 64) << "only the first tile may be short";
      }
      EXPECT_EQ(query_tile<C>(tile), C::kRanged ? p.q_tiles - 1 - index : index);
      for (int row = tile.q0; row < end; ++row) ++seen[row];
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), q_len) << "q_len " << q_len;
  }
}

TEST(QueryTiles, HoldEveryRowOnce) {
  check_tiles<Tiling<false, 2>>();
  check_tiles<Tiling<true, 2>>();
  check_tiles<Tiling<true, 3>>();
}

struct MixedTiling : Tiling<true, 3> {
  static constexpr bool kMixed = true;
};

// Tiles of 192 rows, then tiles of 128, whatever their numbers: every row once, tall tiles first.
TEST(QueryTiles, OfTwoHeightsHoldEveryRowOnce) {
  using C = MixedTiling;
  for (const int q_len : {1, 64, 129, 192, 500, 640, 1000}) {
    const int units = (q_len + 63) / 64;
    for (int tall = 0; tall <= (units + 2) / 3; ++tall) {
      ForwardParams p;
      p.heads = 3;
      p.sequences = 2;
      p.q_len = p.kv_len = q_len;
      p.left = p.right = kNoLimit;
      p.tall_tiles = tall;
      p.q_tiles = tall + (std::max(0, units - 3 * tall) + 1) / 2;
      p.tiles = p.q_tiles * p.heads * p.sequences;
      std::vector<int> seen(p.heads * p.sequences * q_len);
      for (int index = 0; index < p.tiles; ++index) {
        const WorkTile tile = work_tile<C>(index, p);
        const int end = query_end<C>(tile, p), rows = index < tall * p.heads * p.sequences ? 192 : 128;
        ASSERT_LT(tile.q0, end) << "q_len " << q_len << ", tall " << tall;
        EXPECT_EQ(end, std::min(q_len, tile.q0 + rows));
        for (int row = tile.q0; row < end; ++row) ++seen[(tile.sequence * p.heads + tile.head) * q_len + row];
      }
      EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), static_cast<std::ptrdiff_t>(seen.size()));
    }
  }
}

// The time of a mixture is that of the block that ends last when TileDealer deals it, and no mixture is faster.
TEST(TileHeights, EndEarliest) {
  for (const int blocks : {1, 5, 132}) {
    for (const int heads : {1, 7, 20, 64}) {
      for (const int q_len : {100, 640, 1024, 1500, 4096}) {
        const TileHeights chosen = choose_heights(q_len, heads, blocks);
        const std::int64_t units = (q_len + 63) / 64;
        ASSERT_GE(3 * chosen.tall + 2 * chosen.low, units);
        const auto simulated = [&](std::int64_t tall, std::int64_t low) {
          std::vector<double> ends(blocks);
          for (std::int64_t index = 0; index < (tall + low) * heads; ++index) {
            const std::int64_t wave = index / blocks, rest = index % blocks;
            ends[wave % 2 ? blocks - 1 - rest : rest] += index < tall * heads ? 1 : kLowTileTime;
          }
          return *std::max_element(ends.begin(), ends.end());
        };
        EXPECT_NEAR(simulated(chosen.tall, chosen.low), chosen.time, 1e-9);
        for (std::int64_t tall = 0; 3 * tall <= units; ++tall) {
          EXPECT_GE(simulated(tall, (units - 3 * tall + 1) / 2), chosen.time - 1e-9);
        }
      }
    }
  }
}

// Starts lie on the device, where the host cannot check them: whatever they hold, rows stay inside the tensors.
TEST(QueryTiles, OfPackedSequencesStayInsideTheTensors) {
  using C = Tiling<true, 2>;
  const std::vector<std::int32_t> wild[] = {
      {0, 100, 300}, {-5, 100, 301}, {200, 100, 90}, {0, 1 << 30, -(1 << 30)}, {400, 500, 600}};
  for (const auto& starts : wild) {
    ForwardParams p;
    p.heads = p.heads_together = 1;
    p.sequences = 2;
    p.q_len = p.kv_len = 250;
    p.q_rows = p.kv_rows = 300;
    p.left = p.right = kNoLimit;
    p.q_tiles = (p.q_len + C::kBlockQ - 1) / C::kBlockQ;
    p.tiles = p.q_tiles * p.sequences;
    p.q_starts = p.kv_starts = {starts.data(), 1};
    for (int index = 0; index < p.tiles; ++index) {
      const WorkTile tile = work_tile<C>(index, p);
      EXPECT_GE(tile.q_begin, 0);
      EXPECT_GE(tile.q_len, 0);
      EXPECT_LE(tile.q_begin + tile.q_len, p.q_rows);
      EXPECT_GE(tile.kv_begin, 0);
      EXPECT_LE(tile.kv_begin + tile.kv_visible, p.kv_rows);
      if (&starts == wild) {
        EXPECT_EQ(tile.q_begin, starts[tile.sequence]);
        EXPECT_EQ(tile.q_len, starts[tile.sequence + 1] - starts[tile.sequence]);
      }
    }
  }
}

TEST(TileDealer, DealsEveryTileOnce) {
  for (const int tiles : {1, 7, 12, 13, 100}) {
    for (const bool in_shares : {false, true}) {
      ForwardParams p;
      p.tiles = tiles;
      const int blocks = std::min(tiles, 12);
      if (in_shares) p.tile_share = (tiles + blocks - 1) / blocks;
      gridDim.x = blocks;
      std::vector<int> dealt(tiles);
      for (int block = 0; block < blocks; ++block) {
        blockIdx.x = block;
        TileDealer dealer(p);
        for (int turn = 0; turn < 2 * tiles; ++turn, dealer.advance()) {
          if (!dealer.done()) ++dealt[dealer.tile()];
        }
      }
      EXPECT_EQ(std::count(dealt.begin(), dealt.end(), 1), tiles) << "in shares: " << in_shares;
    }
  }
  gridDim.x = 0;
  blockIdx.x = 0;
}

}  // namespace
}  // namespace rootdk::test
