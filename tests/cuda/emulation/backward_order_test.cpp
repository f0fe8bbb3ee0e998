// The order in which key tiles add to the gradient of q (backward/tiles.cuh), followed on the host: every key tile adds
// once to every query tile that sees it, the numbers of a sum have no gaps, what is read at the end has been written,
// and nobody waits for ever. Where the gradient of q has a pass of its own, its blocks share out queries and keys.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <ostream>
#include <utility>
#include <vector>

#include "cuda/emulation/block.h"
// The language comes first.
#include "cuda/hopper/backward/query_blocks.cuh"
#include "cuda/hopper/backward/tiles.cuh"

namespace rootdk::test {
namespace {

using namespace cuda::hopper;

using Tiles64x128 = BackwardConfig<__nv_bfloat16, 128, BackwardVariant::plain>;  // queries by keys
using Tiles128x128 = BackwardConfig<__nv_bfloat16, 64, BackwardVariant::plain>;
using Tiles64x64 = BackwardConfig<__nv_bfloat16, 64, BackwardVariant::rich>;

constexpr int kFar = 1 << 28;

struct OrderCase {
  int q_len, kv_len;
  int left = kFar, right = 0;  // as in BackwardParams
  AddOrder order;
  int blocks;  // at work at once
};
std::ostream& operator<<(std::ostream& stream, const OrderCase& c) {
  return stream << c.q_len << " x " << c.kv_len << ", left " << c.left << ", right " << c.right << ", ring "
                << c.order.ring << ", ascending " << c.order.ascending << ", sums " << c.order.sums() << ", rounds "
                << c.order.rounds;
}

template <class C>
BackwardParams params_of(const OrderCase& c) {
  BackwardParams p;
  p.rule.batch = p.rule.heads = p.rule.kv_heads = 1;
  p.rule.q_len = c.q_len;
  p.rule.kv_len = c.kv_len;
  p.left = c.left;
  p.right = c.right;
  p.queries = {.planes = 1, .tiles = (c.q_len + C::kBlockQ - 1) / C::kBlockQ};
  p.keys = {.planes = 1, .tiles = (c.kv_len + C::kBlockKv - 1) / C::kBlockKv};
  p.items = p.keys.tiles;
  p.order = c.order;
  return p;
}

std::vector<int> walk_of(const KeyTile& tile) {
  std::vector<int> tiles;
  QueryWalk walk(tile);
  for (int steps = tile.tiles; steps > 0; --steps, walk.advance()) tiles.push_back(walk.tile());
  return tiles;
}

template <class C>
void expect_every_add_once(const BackwardParams& p) {
  std::vector<std::map<int, std::vector<int>>> numbers(static_cast<std::size_t>(p.queries.tiles));  // by sum
  std::vector<int> visitors(numbers.size()), rounders(numbers.size()), rounded(numbers.size(), -1);
  for (int item = 0; item < p.items; ++item) {
    const KeyTile tile = work_item<C>(item, p);
    for (const int i : walk_of(tile)) {
      const auto at = static_cast<std::size_t>(i);
      const AddTurn turn_of = add_turn<C>(p, tile, i);
      numbers[at][turn_of.sum].push_back(turn_of.number);
      ++visitors[at];
      if (!tile.rounds(i)) continue;
      ++rounders[at];
      rounded[at] = turn_of.number;
    }
  }
  for (int i = 0; i < p.queries.tiles; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const int shift = p.rule.kv_len - p.rule.q_len;
    EXPECT_EQ(visitors[at], key_tile_count<C>(p, i * C::kBlockQ, shift, p.rule.kv_len)) << "query tile " << i;
    for (int sum = 0; sum < p.order.sums(); ++sum) {
      EXPECT_EQ(has_sum(p.order, sum, visitors[at]), numbers[at].contains(sum)) << "query tile " << i;
    }
    for (auto& [sum, given] : numbers[at]) {
      EXPECT_TRUE(sum >= 0 && sum < p.order.sums()) << sum;
      std::sort(given.begin(), given.end());
      for (std::size_t n = 0; n < given.size(); ++n) EXPECT_EQ(given[n], static_cast<int>(n)) << "query tile " << i;
    }
    if (!p.order.rounds || visitors[at] == 0) continue;
    EXPECT_EQ(rounders[at], 1) << "query tile " << i;
    EXPECT_EQ(rounded[at], visitors[at] - 1) << "the last rounds, query tile " << i;
  }
}

// Blocks draw key tiles in order and take a step wherever it is their turn.
template <class C>
void expect_an_end(const BackwardParams& p, int blocks) {
  struct Work {
    KeyTile tile;
    std::vector<int> walk;
    std::size_t steps = 0;
  };
  std::map<std::pair<int, int>, int> turns;
  std::vector<Work> at_work;
  int drawn = 0;
  bool moves = true;
  while (moves) {
    moves = false;
    for (; drawn < p.items && static_cast<int>(at_work.size()) < blocks; ++drawn) {
      const KeyTile tile = work_item<C>(drawn, p);
      at_work.push_back({tile, walk_of(tile)});
    }
    for (Work& work : at_work) {
      if (work.steps == work.walk.size()) continue;
      const int i = work.walk[work.steps];
      const AddTurn turn_of = add_turn<C>(p, work.tile, i);
      int& turn = turns[{i, turn_of.sum}];
      if (turn != turn_of.number) continue;
      ++turn;
      ++work.steps;
      moves = true;
    }
    moves |= std::erase_if(at_work, [](const Work& work) { return work.steps == work.walk.size(); }) > 0;
  }
  EXPECT_TRUE(at_work.empty() && drawn == p.items) << at_work.size() << " key tiles wait for ever";
}

template <class C>
void expect_order(const OrderCase& c) {
  SCOPED_TRACE(testing::Message() << c);
  const BackwardParams p = params_of<C>(c);
  expect_every_add_once<C>(p);
  expect_an_end<C>(p, c.blocks);
}

TEST(BackwardOrder, Plain) {
  for (const auto& [q_len, kv_len] : {std::pair{1000, 1000}, {900, 1300}, {1300, 900}, {64, 2000}, {2000, 1}}) {
    for (const int left : {kFar, 0, 100, 400}) {
      for (const int right : {0, 70}) {
        const OrderCase c{
            .q_len = q_len, .kv_len = kv_len, .left = left, .right = right, .order = {.rounds = true}, .blocks = 3};
        expect_order<Tiles64x128>(c);
        expect_order<Tiles128x128>(c);
        expect_order<Tiles64x64>(c);
      }
    }
    expect_order<Tiles64x128>({.q_len = q_len, .kv_len = kv_len, .order = {.sum_shift = 2}, .blocks = 5});
  }
}

TEST(BackwardOrder, Ring) {
  for (const int len : {1000, 1024, 1100}) {
    const int keys = (len + 127) / 128;
    expect_order<Tiles64x128>({.q_len = len,
                               .kv_len = len,
                               .right = kFar,
                               .order = {.ring = true, .ring_shift = 1, .rounds = true},
                               .blocks = keys});
    expect_order<Tiles128x128>(
        {.q_len = len, .kv_len = len, .right = kFar, .order = {.ring = true, .sum_shift = 1}, .blocks = keys});
  }
}

// As many blocks as there are ascending key tiles, which is all that the order can rely on.
TEST(BackwardOrder, Front) {
  for (const auto& [q_len, kv_len] : {std::pair{4000, 4000}, {3000, 4000}, {4000, 3000}, {100, 4000}, {4000, 100}}) {
    for (const int ascending : {1, 6, 24, 31, 40}) {
      for (const int ascending_sum_shift : {0, 1, 2}) {
        for (const int sum_shift : {0, 1}) {
          const OrderCase c{
              .q_len = q_len,
              .kv_len = kv_len,
              .order = {.sum_shift = sum_shift, .ascending = ascending, .ascending_sum_shift = ascending_sum_shift},
              .blocks = ascending};
          expect_order<Tiles64x128>(c);
          expect_order<Tiles128x128>(c);
          expect_order<Tiles64x64>(c);
        }
      }
    }
  }
}

// Every key tile that a query tile sees belongs to one block, and the longest of a bundle of heads come first.
void expect_shared_out(BackwardParams p) {
  using C = BackwardConfig<__nv_bfloat16, 256, BackwardVariant::plain>;
  const int row_blocks = (p.rule.q_len + kQueriesOfBlock - 1) / kQueriesOfBlock, parts_of_keys = p.order.sums();
  std::map<std::pair<int, int>, std::vector<int>> seen;  // key tiles by plane and row
  std::map<std::pair<int, int>, int> parts;
  int bundle = -1, tiles = 0;
  for (int index = 0; index < p.queries.planes * row_blocks * parts_of_keys; ++index) {
    const QueryBlock b = query_block<C>(index, p);
    const int plane = b.entry * p.rule.heads + b.head;
    EXPECT_EQ(b.kv_head, b.head / p.rule.group());
    const std::pair block_of{plane, b.row0};
    parts[block_of] += 1 << b.part;
    for (int t = 0; t < b.tiles; ++t) seen[block_of].push_back(b.first + t);
    if (plane / p.query_heads_together == bundle) {
      EXPECT_LE(b.tiles, tiles + 1) << "the longest first; parts differ by one";
    }
    bundle = plane / p.query_heads_together;
    tiles = b.tiles;
  }
  EXPECT_EQ(parts.size(), static_cast<std::size_t>(p.queries.planes * row_blocks));
  for (const auto& [block_of, given] : parts) {
    EXPECT_EQ(given, (1 << parts_of_keys) - 1) << "every part once";
    const int first_row = block_of.second + p.rule.kv_len - p.rule.q_len;
    std::vector<int> wanted;
    for (int t = 0; t < p.keys.tiles; ++t) {
      const int key0 = t * C::kBlockKv, last = std::min(key0 + C::kBlockKv, p.rule.kv_len) - 1;
      const bool visible = key0 <= first_row + kQueriesOfBlock - 1 + p.right && last >= first_row - p.left;
      if (visible) wanted.push_back(t);
    }
    EXPECT_EQ(seen[block_of], wanted) << "plane " << block_of.first << ", row " << block_of.second;
  }
}

TEST(BackwardOrder, QueryBlocks) {
  for (const auto& [q_len, kv_len] : {std::pair{1000, 1000}, {900, 1300}, {64, 2000}, {128, 65}}) {
    for (const int shift : {0, 1, 2}) {
      for (const int right : {0, kFar}) {
        OrderCase c{.q_len = q_len, .kv_len = kv_len, .right = right, .order = {.sum_shift = shift}, .blocks = 1};
        BackwardParams p = params_of<Tiles64x64>(c);
        p.rule.batch = 3;
        p.rule.heads = 4;
        p.rule.kv_heads = 2;
        p.queries.planes = 12;
        for (const int together : {1, 4, 5, 12}) {
          SCOPED_TRACE(testing::Message() << c << ", " << together << " heads together");
          p.query_heads_together = together;
          expect_shared_out(p);
        }
      }
    }
  }
}

}  // namespace
}  // namespace rootdk::test
